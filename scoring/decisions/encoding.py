"""The prompts of a decision as token ids: those of one encoding of each prompt, the caller's control tokens as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby
from typing import NamedTuple

import numpy as np

from checkpoints.card import ModelCard
from scoring.decisions.checkpoint import Tokens
from scoring.error_codes import invalid
from scoring.layout import Rows, TokenIds
from scoring.tokenizing.control_tokens import ControlTokenError, ControlTokens, TextPart
from scoring.tokenizing.encoded import EncodedQuery, checked_vocabulary
from scoring.tokenizing.packed_tokens import common_prefixes, packed
from scoring.tokenizing.row_encoder import check_query_length
from scoring.tokenizing.tokenization import TextTokenizer

MARK, SPLIT = "<|mark|>", "<|split|>"
"""What a decision template writes where an answer is read, and where the text is cut before it is encoded."""

_SENTINEL = re.compile(f"{re.escape(MARK)}|{re.escape(SPLIT)}")


class Behind(Enum):
    """What stands before a text that is encoded by itself. Tokenizers may mark the beginning of a text by it."""

    NOTHING = auto()
    SENTINEL = auto()  # for the reference an added token of the same text
    TEXT = auto()  # a control token of the caller


@dataclass(frozen=True, slots=True, eq=False)
class DecisionPrompts:
    """The prompts of one request as texts, in which control tokens of the caller are marked."""

    control: ControlTokens | None  # None: nothing is marked, and a control token of the caller is one
    shared: str  # what the prompts about this state begin with; of one prompt for all questions: nothing
    behind: tuple[str, ...]  # of each row: what follows, up to where its answer is read
    suffixes: tuple[Tokens, ...]  # of each row: the tokens behind that
    apart: frozenset[int] = frozenset()  # rows whose text is their whole prompt, which begins otherwise
    are_one: bool = False  # whether all questions stand in one prompt: then each text follows the one before it

    def encode(self, card: ModelCard, tokenizer: TextTokenizer, stop_if_unwanted: Callable[[], None]) -> EncodedQuery:
        """Encode what the prompts share, and return what encodes the rows. Raises RequestError, QueryTooLongError."""
        if self.are_one:
            return self._one(card, tokenizer)
        *before, last = self._pieces(self.shared)
        ids = self._encode(before, tokenizer)
        if tokenizer.marks_beginnings and before:
            return self._whole_prompts(ids, last, card, tokenizer)
        encoder = tokenizer.row_encoder(
            last.text,
            before=ids,
            add_special_tokens=False,
            longest=card.context_length,
            stop_if_unwanted=stop_if_unwanted,
        )

        def encode_items(items: Sequence[str], first: int) -> Iterator[Rows]:
            for start, texts in self._runs(items, first):
                if start in self.apart:
                    yield from self._apart(encoder.query, texts, tokenizer, start)
                    continue
                pieces = [self._pieces(text) for text in texts]
                done = 0
                for rows in encoder([of_row[0].text for of_row in pieces]):
                    tails = self._tails(pieces[done : done + len(rows)], tokenizer, start + done)
                    yield _extended(rows, tails)
                    done += len(rows)

        return EncodedQuery(
            checked_vocabulary(encoder.query, card, "state"),
            encode_items,
            tokens=len(encoder.query),
            repeated_characters=encoder.repeated_characters,
        )

    def _whole_prompts(
        self, before: list[int], last: _Piece, card: ModelCard, tokenizer: TextTokenizer
    ) -> EncodedQuery:
        """Encode each prompt as a whole, for a tokenizer that puts a marker before every text."""
        prefix = np.array([*before, *self._encode([last], tokenizer)], np.int32)

        def encode_items(items: Sequence[str], first: int) -> Iterator[Rows]:
            for n, item in enumerate(items, first):
                yield from self._apart(prefix, [item if n in self.apart else self.shared + item], tokenizer, n)

        repeated = len(self.shared)
        prefix = checked_vocabulary(prefix, card, "state")
        return EncodedQuery(prefix, encode_items, tokens=len(prefix), repeated_characters=repeated)

    def _tails(self, pieces: Sequence[list[_Piece]], tokenizer: TextTokenizer, first: int) -> list[list[int]]:
        """Return the tokens behind the first piece of each row. first: the number of the first row."""
        return [[*self._encode(of_row[1:], tokenizer), *self.suffixes[n]] for n, of_row in enumerate(pieces, first)]

    def _pieces(self, marked: str, behind: Behind = Behind.NOTHING) -> list[_Piece]:
        """Return the pieces of a marked text, of which the first and the last are the template's, and may be empty.

        behind: what stands before it.
        """
        found: list[_Piece] = []
        parts = [TextPart(marked, as_text=False)] if self.control is None else self.control.split(marked)
        for part in parts:
            for text in [part.text] if part.as_text else _SENTINEL.split(part.text):
                found.append(_Piece(text, part.as_text, behind))
                behind = Behind.SENTINEL
            behind = Behind.TEXT
        return [*found, _Piece("", behind=Behind.TEXT)] if found[-1].as_text else found

    def _encode(self, pieces: Sequence[_Piece], tokenizer: TextTokenizer) -> list[int]:
        tokens: list[int] = []
        for piece in pieces:
            if piece.as_text:
                tokens += self._as_text(piece.text)
            elif piece.behind is Behind.SENTINEL:
                tokens += tokenizer.encode_behind_token(piece.text)
            elif piece.behind is Behind.TEXT:
                tokens += tokenizer.encode_behind_text(piece.text)
            else:
                tokens += tokenizer.encode(piece.text, add_special_tokens=False)
        return tokens

    def _as_text(self, token: str) -> list[int]:
        assert self.control is not None, "it is marked"
        try:
            return self.control.encode_as_text(token)
        except ControlTokenError as error:
            raise invalid(f"the request can't be encoded: {error}", "state") from None

    def _runs(self, items: Sequence[str], first: int) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield consecutive rows that are encoded alike, with the number of the first of them."""
        for _, run in groupby(range(first, first + len(items)), lambda n: n in self.apart):
            rows = list(run)
            yield rows[0], items[rows[0] - first : rows[-1] + 1 - first]

    def _apart(self, prefix: TokenIds, texts: Sequence[str], tokenizer: TextTokenizer, first: int) -> Iterator[Rows]:
        """Encode whole prompts as rows behind what they have in common with the prefix. first: the first row."""
        for n, text in enumerate(texts, first):
            tokens = self._encode(self._pieces(text), tokenizer)
            yield _row_behind(prefix, [*tokens, *self.suffixes[n]])

    def _one(self, card: ModelCard, tokenizer: TextTokenizer) -> EncodedQuery:
        """Encode one prompt, which is the shared beginning of rows that end within it."""
        tokens: list[int] = []
        ends = []
        for n, (text, suffix) in enumerate(zip(self.behind, self.suffixes, strict=True)):
            if not suffix:
                tokens += self._encode(self._pieces(text, Behind.SENTINEL if n else Behind.NOTHING), tokenizer)
                check_query_length(len(tokens), card.context_length)
            ends.append(len(tokens))
        all_ends = np.array(ends, np.int32)

        def encode_items(items: Sequence[str], first: int) -> Iterator[Rows]:
            stop = first + len(items)
            yield Rows.pack(self.suffixes[first:stop], all_ends[first:stop])

        prefix = np.array(tokens, np.int32)
        return EncodedQuery(checked_vocabulary(prefix, card, "state"), encode_items, tokens=len(prefix))


class _Piece(NamedTuple):
    """A text that is encoded by itself."""

    text: str
    as_text: bool = False  # whether it is a control token of the caller
    behind: Behind = Behind.NOTHING


def _row_behind(prefix: TokenIds, sequence: Sequence[int]) -> Rows:
    """Return a sequence as a row behind what it has in common with the prefix."""
    tokens, lengths = packed([sequence])
    shared = common_prefixes(tokens, lengths, prefix)
    return Rows(tokens[int(shared[0]) :], lengths - shared, shared)


def _extended(rows: Rows, tails: Sequence[Sequence[int]]) -> Rows:
    """Return rows with further tokens at their ends."""
    if not any(tails):
        return rows
    ends = np.cumsum(rows.lengths)
    own = [
        [*rows.tokens[end - length : end].tolist(), *tail]
        for end, length, tail in zip(ends.tolist(), rows.lengths.tolist(), tails, strict=True)
    ]
    return Rows.pack(own, rows.prefix_ends)
