"""Keep what a caller writes from becoming control tokens, such as ``<|im_end|>``: there they are encoded as plain text.

The control tokens of a template are the tokenizer's special tokens, and those of its other added tokens that the
template's own text contains. The rule and the tokens are those of transformers (``sanitize_control_tokens``): a
control token is encoded by itself, without the tokenizer's added tokens, and so is the text before and behind it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar, cast

from scoring.quoting import quote

START, END = "\U000f0000", "\U000f0001"
"""Characters for private use. Between them stands a control token that a caller wrote."""

_SEARCHED = 2**16
"""Characters in which one call searches for control tokens. A search holds the interpreter's lock."""

T = TypeVar("T")


class ControlTokenError(Exception):
    """The tokenizer yields a control token from plain text, too, so a caller's text can't be encoded without it."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.item: int | None = None  # the index of the item that holds it, among those that were encoded together
        super().__init__(f"it holds {quote(token)}, which the model's tokenizer reads as a control token in any text")


class TextEncoder(Protocol):
    """What is needed of a tokenizer here, and to encode rows: ``TextTokenizer`` says what its methods do."""

    added_tokens: Mapping[str, int]
    special_tokens: frozenset[str]

    @property
    def around(self) -> tuple[list[int], list[int]]: ...

    def encode_each(
        self, texts: Iterable[str], *, add_special_tokens: bool, behind_text: bool = False
    ) -> Iterator[list[int]]: ...

    def encode_as_text(self, text: str) -> list[int]: ...


class TextPart(NamedTuple):
    """A part of a text that is encoded by itself."""

    text: str
    as_text: bool  # whether it is a control token that a caller wrote


class ControlTokens:
    """The control tokens of a template's text, for one tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: TextEncoder, template_text: str, extra: Sequence[str] = ()) -> None:
        """Find the control tokens.

        template_text: what the template itself says; texts that stand apart are best joined by a NUL character. extra:
        further texts that callers can't write as what they mean to the template.
        """
        self._tokenizer = tokenizer
        added = [
            token
            for token in tokenizer.added_tokens
            if token in tokenizer.special_tokens or (token in template_text and not token.isspace())
        ]
        # Of those that begin at the same place, the longest one counts.
        self._texts = tuple(sorted(filter(None, {*added, *extra}), key=lambda text: (-len(text), text)))
        self._any, self._marked = _patterns(self._texts)
        self._longest = max(map(len, self._texts), default=0)
        self._ids: dict[str, list[int]] = {}  # of the control tokens that callers have written so far, as plain text

    def mark(self, value: T) -> T:
        """Return a text, or what lists and mappings hold, names included, with its control tokens marked.

        Where a template renders the value, :meth:`split` finds the marks again. Marks that the caller wrote are
        dropped before. Of names that become the same by that, the last one counts, as in JSON.
        """
        return cast("T", self._mark(value))

    def _mark(self, value: object) -> object:
        match value:
            case str():
                parts = self.split_written([(value.replace(START, "").replace(END, ""), True)])
                return "".join(START + part.text + END if part.as_text else part.text for part in parts)
            case dict():
                return {self._mark(name): self._mark(each) for name, each in value.items()}
            case list() | tuple():
                return [self._mark(each) for each in value]
        return value

    def split(self, marked: str) -> list[TextPart]:
        """Split a text with marks into parts, of which only the first one may be empty. It is never as_text.

        A mark by itself, which a template has separated from its token, is dropped, but still divides the text.
        """
        # Without a token, a mark by itself gives None.
        first, *others = self._marked.split(marked)
        parts = [TextPart(text, bool(n % 2)) for n, text in enumerate(others, 1) if text]
        return [TextPart(first, as_text=False), *parts]

    def split_written(self, texts: Sequence[tuple[str, bool]]) -> list[TextPart]:
        """Split texts that stand one behind another, as :meth:`split` does.

        texts: each with whether a caller wrote it. A control token is the template's only if the template wrote all
        of it, so none arises where the texts of a caller meet others. Nothing is dropped.
        """
        text = "".join(each for each, _ in texts)
        parts, end = [], 0
        for start, stop in self._written(text, texts):
            parts += [TextPart(text[end:start], as_text=False), TextPart(text[start:stop], as_text=True)]
            end = stop
        parts.append(TextPart(text[end:], as_text=False))
        return [parts[0], *(part for part in parts[1:] if part.text)]

    def found_in(self, text: str) -> bool:
        """Return whether a text holds a control token, whoever wrote it."""
        return next(self._found(text), None) is not None

    def _written(self, text: str, texts: Sequence[tuple[str, bool]]) -> Iterator[tuple[int, int]]:
        """Yield where the control tokens begin and end of which a caller wrote a part."""
        starts, ends, place = [], [], 0
        for each, by_caller in texts:
            if by_caller:
                starts.append(place)
                ends.append(place + len(each))
            place += len(each)
        for start, stop in self._found(text):
            last = bisect_right(starts, stop - 1) - 1  # of the caller's texts that begin before the token ends
            if last >= 0 and ends[last] > start:
                yield start, stop

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where control tokens begin and end in a text, from the left."""
        place = 0
        while self._texts and place < len(text):
            window = place + _SEARCHED
            match = self._any.search(text, place, window + self._longest)
            if match is None or match.start() >= window:
                place = window
            else:
                yield match.span()
                place = match.end()

    def encode(self, parts: Sequence[TextPart], *, behind_text: bool = False) -> list[int]:
        """Return the token ids of the parts of a text, without special tokens around it. Raises ControlTokenError.

        behind_text: whether the first part stands behind other text, so that the tokenizer marks no beginning.
        """
        first, *others = parts
        texts = (part.text for part in others if not part.as_text)
        plain = self._tokenizer.encode_each(texts, add_special_tokens=False, behind_text=True)
        (ids,) = self._tokenizer.encode_each([first.text], add_special_tokens=False, behind_text=behind_text)
        for part in others:
            ids += self.encode_as_text(part.text) if part.as_text else next(plain)
        return ids

    def encode_as_text(self, token: str) -> list[int]:
        """Return the token ids of a control token that a caller wrote, behind other text.

        Raises ControlTokenError.
        """
        ids = self._ids.get(token)
        if ids is None:
            ids = self._tokenizer.encode_as_text(token)
            if self._tokenizer.added_tokens.get(token) in ids:
                raise ControlTokenError(token)
            self._ids[token] = ids
        return ids


@lru_cache(maxsize=64)
def _patterns(texts: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what finds a text, and what finds one between marks or a mark by itself. texts: the longest ones first."""
    one = "|".join(map(re.escape, texts)) or "(?!)"
    return re.compile(one), re.compile(f"{START}({one}){END}|[{START}{END}]")
