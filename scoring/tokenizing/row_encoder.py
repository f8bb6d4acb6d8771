"""Turn items into rows behind a query whose tokens are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from scoring.layout import Rows, TokenIds
from scoring.tokenizing.control_tokens import ControlTokenError, ControlTokens, TextEncoder, TextPart
from scoring.tokenizing.packed_tokens import common_prefixes, drop_leading, packed

_NO_TOKENS: TokenIds = np.zeros(0, np.int32)

BATCH_ROWS = 4_096
BATCH_CHARACTERS = 2**14
"""Limits of one call into the tokenizer, unless a single text is longer. A call takes a few milliseconds, because calls
of other threads wait for it. So a request that is too large is also refused early."""


@dataclass(frozen=True, slots=True, eq=False)
class RowEncoder:
    """Turns items into rows behind one query, in batches of bounded size, each computed when it is asked for."""

    tokenizer: TextEncoder
    query: TokenIds  # encode(query)
    stable: int  # how many leading tokens of the query no item can change
    tail: str  # the end of the query, which is encoded again with every item
    add_special_tokens: bool  # whether the tokenizer puts its special tokens around the tail and an item
    behind_text: bool = False  # whether the tail stands behind other text, so that the tokenizer marks no beginning
    after: str = ""  # text that is encoded behind every item
    suffix: TokenIds = field(default_factory=lambda: _NO_TOKENS)  # tokens at the end of every row
    control_tokens: ControlTokens | None = None  # what items can't write; None: items are texts like any other

    @property
    def repeated_characters(self) -> int:
        """How many characters are encoded with each item besides its own."""
        return len(self.tail) + len(self.after)

    def __call__(self, items: Sequence[str]) -> Iterator[Rows]:
        """Encode ``tail + item`` for each item. The rows share the stable tokens, and what else of them agrees.

        Raises ControlTokenError, which names the item.
        """
        first = 0
        for texts in batches(items, self.repeated_characters + len(self.suffix)):
            tokens, lengths = packed(list(self._encode(texts, first)))
            first += len(texts)
            if len(self.suffix):
                ends = np.repeat(np.cumsum(lengths, dtype=np.int64), len(self.suffix))
                tokens = np.insert(tokens, ends, np.tile(self.suffix, len(lengths)))
                lengths = lengths + np.int32(len(self.suffix))
            shared = common_prefixes(tokens, lengths, self.query[self.stable :])
            yield Rows(drop_leading(tokens, lengths, shared), lengths - shared, shared + np.int32(self.stable))

    def parts(self, item: str) -> Sequence[TextPart]:
        """Return the parts of the text with an item, each of which is encoded by itself: mostly it is the only one."""
        text = self.tail + item + self.after
        if self.control_tokens is None or not self.control_tokens.found_in(text):
            return (TextPart(text, as_text=False),)
        return self.control_tokens.split_written([(self.tail, False), (item, True), (self.after, False)])

    def _encode(self, items: Sequence[str], first: int) -> Iterator[list[int]]:
        """Yield the tokens of each item's row behind the stable tokens, without the suffix.

        first: the index of the first item.
        """
        of_items = [self.parts(item) for item in items]
        whole = self.tokenizer.encode_each(
            (parts[0].text for parts in of_items if len(parts) == 1),
            add_special_tokens=self.add_special_tokens,
            behind_text=self.behind_text,
        )
        for n, parts in enumerate(of_items, first):
            if len(parts) == 1:
                yield next(whole)
            elif self.control_tokens is not None:
                before, after = self.tokenizer.around if self.add_special_tokens else ([], [])
                try:
                    ids = self.control_tokens.encode(parts, behind_text=self.behind_text)
                except ControlTokenError as error:
                    error.item = n
                    raise
                yield [*before, *ids, *after]


class QueryTooLongError(Exception):
    """The query alone is longer than the model's context."""

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.tokens = tokens  # of the query, as far as it was encoded


def check_query_length(tokens: int, longest: int | None) -> None:
    """Raise QueryTooLongError if the tokens of a query leave no room for it in a context of ``longest`` tokens."""
    if longest is not None and tokens > longest:
        raise QueryTooLongError(tokens)


def batches(texts: Iterable[str], overhead: int = 0) -> Iterator[list[str]]:
    """Split texts into batches within the limits above, as they are taken.

    overhead: further characters to count for each text.
    """
    batch: list[str] = []
    characters = 0
    for text in texts:
        size = len(text) + overhead
        if batch and (len(batch) == BATCH_ROWS or characters + size > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += size
    if batch:
        yield batch
