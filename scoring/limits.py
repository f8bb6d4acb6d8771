"""The limits of one endpoint, and the checks that need only sizes, so that they come before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scoring.error_codes import ErrorCode, RequestError


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest number of something that a request may have."""

    setting: str  # its name, under which requests that exceed the limit are counted
    most: int
    advice: str = ""  # what the client can do instead; appended to the error message

    def exceeded(self, message: str, param: str) -> RequestError:
        """Return the error for a request that exceeds the limit."""
        full = f"{message}; {self.advice}" if self.advice else message
        return RequestError(ErrorCode.REQUEST_TOO_LARGE, full, param=param, limit=self.setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one endpoint accepts, and how large its chunks are."""

    max_labels: int  # of an item, and of all items together, each counted once
    item_labels: Limit  # over all items, of labels for each item
    items: Limit
    tokens: Limit  # over all sequences, each of which counts with its query
    stored_tokens: Limit  # over all rows; the row of an item holds the query too if there is no shared prefix
    repeated_characters: Limit  # of the query, over all items: those that are tokenized again with each item
    query_characters: Limit
    item_characters: Limit
    label_characters: Limit
    label_tokens: Limit  # of all labels together behind one item, if labels may have several
    chunk_tokens: int  # most work in a chunk of several rows, as scoring.work measures it
    chunk_items: int  # most rows in a chunk

    def check_items(self, count: int) -> None:
        """Refuse more items than are allowed."""
        if count > self.items.most:
            raise self.items.exceeded(f"more than the {self.items.most} items allowed here", "items")

    def check_query_and_labels(
        self, query: str | list[int], labels: Sequence[str], item_labels: Sequence[Sequence[object]] = ()
    ) -> None:
        """Refuse texts that are too long. Token ids are ignored."""
        check_characters(query, self.query_characters, "query")
        for n, label in enumerate(labels):
            check_characters(label, self.label_characters, f"labels[{n}]")
        for n, of_item in enumerate(item_labels if item_labels and isinstance(item_labels[0][0], str) else ()):
            for m, text in enumerate(of_item):
                check_characters(text, self.label_characters, f"labels[{n}][{m}]")

    def check_wording(self, characters: int, param: str) -> None:
        """Refuse templates and an instruction that are longer together than a query may be. param: one of them."""
        if characters > self.query_characters.most:
            message = (
                f"templates and instruction have {characters} characters, more than the {self.query_characters.most}"
            )
            raise self.query_characters.exceeded(f"{message} allowed here", param)

    def check_item_texts(self, items: Sequence[str | list[int]], first: int = 0) -> None:
        """Refuse texts that are too long. Token ids are ignored.

        first: the index of the first of these items in the request.
        """
        if max(map(len, items), default=0) > self.item_characters.most:
            for n, item in enumerate(items, first):
                check_characters(item, self.item_characters, f"items[{n}]")

    def check_tokens(self, tokens: int, stored_tokens: int) -> None:
        """Refuse more tokens than are allowed: those of all sequences, and those of all rows."""
        if tokens > self.tokens.most:
            message = f"the sequences have more than the {self.tokens.most} tokens in all that are allowed here"
            raise self.tokens.exceeded(message, "items")
        if stored_tokens > self.stored_tokens.most:
            message = (
                f"the items have more than the {self.stored_tokens.most} tokens in all that are stored for one job"
            )
            raise self.stored_tokens.exceeded(message, "items")

    def check_repeated_characters(self, characters: int, items: int) -> None:
        """Refuse items behind a query of which so many characters are tokenized again with each of them."""
        if characters * items > self.repeated_characters.most:
            message = (
                f"{characters} characters of the query and the template must be tokenized again with each item, which "
                f"is allowed for {self.repeated_characters.most // characters} items here"
            )
            raise self.repeated_characters.exceeded(message, "items")

    def check_label_tokens(self, tokens: int, param: str) -> None:
        """Refuse labels that have too many tokens together behind one item."""
        if tokens > self.label_tokens.most:
            message = f"the labels have {tokens} tokens together, more than the {self.label_tokens.most} allowed here"
            raise self.label_tokens.exceeded(message, param)

    def check_label_characters(self, characters: int) -> None:
        """Refuse labels for which so many characters, theirs and those before them, are tokenized behind all items."""
        if characters > self.repeated_characters.most:
            message = (
                "more than "
                f"{self.repeated_characters.most} characters, those of the labels and of the text before them, must be "
                "tokenized behind the items in all"
            )
            raise self.repeated_characters.exceeded(message, "labels")


def check_characters(text: object, limit: Limit, param: str) -> None:
    """Refuse a text that is too long. Anything but a text is ignored."""
    if isinstance(text, str) and len(text) > limit.most:
        message = f"{param} has {len(text)} characters, more than the {limit.most} allowed here"
        raise limit.exceeded(message, param)
