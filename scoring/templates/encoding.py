"""Turn the wording of a prompt, a query and items into tokens.

The template's own text may hold added tokens of the tokenizer, such as ``<|im_start|>``. What a client writes is text:
an added token that is spelled in a query, an item or an instruction is tokenized like any other text. So no document
can end the user's turn and answer in the place of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scoring.layout import TokenIds
from scoring.templates.wording import Piece, Place, Wording
from scoring.tokenization import RowEncoder, TextTokenizer, always_wanted


@dataclass(slots=True)
class _Text:
    """A text that is tokenized by itself, and maybe the place of the item in it."""

    before: list[str] = field(default_factory=list)  # all of the text, or that before the item
    after: list[str] | None = None  # the text behind the item; None if this is not the item's text

    def add(self, text: str) -> None:
        (self.before if self.after is None else self.after).append(text)

    @property
    def is_empty(self) -> bool:
        return self.after is None and not any(self.before)


_Run = int | _Text
"""An added token, or a text between added tokens or the ends of a piece."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A wording with its query, for one tokenizer."""

    wording: Wording
    query: str
    tokenizer: TextTokenizer
    delimiter: int | None = None  # the token between query and item in delimiter mode

    def row_encoder(
        self, longest: int | None = None, stop_if_unwanted: Callable[[], None] = always_wanted
    ) -> RowEncoder:
        """Encode what all items share, and return the encoder of the items behind it.

        longest: the most tokens that the shared part may have. Raises QueryTooLongError.
        """
        first, last = self.tokenizer.around
        runs = [*first, *self._runs(last)]
        at = next(n for n, run in enumerate(runs) if isinstance(run, _Text) and run.after is not None)
        literal = self.tokenizer.literal
        ids: Sequence[int] = []
        for n, run in enumerate(runs[: at + 1]):
            if isinstance(run, int):
                ids = [*ids, run]
                continue
            encoder = literal.row_encoder(
                "".join(run.before),
                before=ids,
                behind_text=n > len(first),
                longest=longest,
                stop_if_unwanted=stop_if_unwanted,
            )
            ids = encoder.query.tolist()
        of_item = runs[at]
        assert isinstance(of_item, _Text)
        behind = [
            [run] if isinstance(run, int) else literal.encode_behind_text("".join(run.before)) for run in runs[at + 1 :]
        ]
        suffix = np.array([token for tokens in behind for token in tokens], np.int32)
        return replace(encoder, after="".join(of_item.after or ()), suffix=suffix)

    def sequence(self, item: str) -> list[int]:
        """Return the tokens that are scored for one item."""
        encoder = self.row_encoder()
        (rows,) = encoder([item])
        shared: TokenIds = encoder.query[: rows.prefix_ends[0]]
        return [*shared.tolist(), *rows.tokens.tolist()]

    def text(self, item: str) -> str:
        """Return the prompt for one item as a text."""
        texts = {Place.INSTRUCTION: self.wording.instruction, Place.QUERY: self.query, Place.ITEM: item}
        pieces = (*self.wording.query, *self.wording.item)
        return "".join(part if isinstance(part, str) else texts[part] for piece in pieces for part in piece)

    def _runs(self, last: Sequence[int]) -> Iterator[_Run]:
        """Yield the runs of the prompt. last: the tokens behind a text."""
        query, item = self.wording.query, self.wording.item
        texts = {Place.INSTRUCTION: self.wording.instruction, Place.QUERY: self.query}
        if self.delimiter is None:
            joined = (*query[:-1], (*query[-1], *item[0]), *item[1:])
            yield from _runs_of(joined, texts, self.tokenizer)
            yield from last
            return
        yield from _runs_of(query, texts, self.tokenizer)
        yield from last
        yield self.delimiter
        yield from _runs_of(item, texts, self.tokenizer)


def _runs_of(pieces: Sequence[Piece], texts: Mapping[Place, str], tokenizer: TextTokenizer) -> Iterator[_Run]:
    for piece in pieces:
        run = _Text()
        for part in piece:
            if part is Place.ITEM:
                run.after = []
            elif isinstance(part, Place):
                run.add(texts[part])
            else:
                for own in tokenizer.added_tokens.split(part):
                    if isinstance(own, str):
                        run.add(own)
                        continue
                    if not run.is_empty:
                        yield run
                    yield own
                    run = _Text()
        if not run.is_empty:
            yield run
