"""The targets of a request whose labels have any number of tokens, or whose items themselves are the targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from checkpoints.card import ModelCard
from scoring.encoded_query import delimiter_found
from scoring.error_codes import ErrorCode, RequestError
from scoring.label_tokens import labels_field
from scoring.layout import Continuations, Rows, TokenIds
from scoring.limits import Limits
from scoring.options import Normalization, Scoring
from scoring.request import PromptsRead, ScoreRequest
from scoring.tokenizing.encoded import EncodedQuery
from scoring.tokenizing.text_labels import MOST_PAIRS, Behind, TextLabels, windows_at_a_time
from scoring.tokenizing.tokenization import TextTokenizer, always_wanted
from scoring.vocabulary import bad_id, check_range


class Targets:
    """Makes the continuations of rows. Every method raises RequestError."""

    columns = 1
    """How many scores each item gets."""

    fewest_tokens = 0
    """How many targets each item has at least."""

    adds_tokens = True
    """Whether the targets are tokens besides those of the items."""

    most_rows = MOST_PAIRS
    """How many rows :meth:`behind` takes at a time. This bounds its memory."""

    def behind(self, rows: Rows, items: Sequence[Any], first: int) -> tuple[Rows, Continuations]:
        """Return the rows to store and their continuations.

        rows: the sequences of consecutive items, at most :attr:`most_rows`. first: the index of the first of them.
        """
        raise NotImplementedError


class OwnTokens(Targets):
    """The targets of a likelihood: the own tokens of each item."""

    adds_tokens = False

    def behind(self, rows: Rows, items: Sequence[Any], first: int) -> tuple[Rows, Continuations]:
        _check_kept(rows.prefix_ends[:, None], first, "query and {} merge to one token, which nothing stands before")
        ones = np.ones(len(rows), np.int32)
        empty = Rows(np.zeros(0, np.int32), np.zeros(len(rows), np.int32), rows.prefix_ends)
        return empty, Continuations(rows.tokens, rows.lengths, rows.prefix_ends, ones)


PLACEHOLDER = 0
"""Stands where the next token of a prompt would, so that the most probable one is read there. Any token will do."""


class PromptTokens(Targets):
    """The targets of whole prompts: their tokens behind the first one, and what stands for the next one."""

    adds_tokens = False

    def __init__(self, read: PromptsRead) -> None:
        self._read = read

    def behind(self, rows: Rows, items: Sequence[Any], first: int) -> tuple[Rows, Continuations]:
        tokens, lengths = rows.tokens, rows.lengths
        if self._read.next:
            tokens = np.insert(tokens, np.cumsum(lengths), PLACEHOLDER)
        kept = np.ones(len(rows), np.int32) if self._read.own else lengths
        whole = lengths + np.int32(self._read.next)
        place = np.arange(len(tokens)) - np.repeat(np.cumsum(whole) - whole, whole)  # of each token in its prompt
        is_kept = place < np.repeat(kept, whole)
        own = Rows(tokens[is_kept], kept, rows.prefix_ends)
        return own, Continuations(tokens[~is_kept], whole - kept, kept, np.ones(len(rows), np.int32))


class LabelSequences(Targets):
    """The targets of labels."""

    def __init__(
        self,
        request: ScoreRequest,
        card: ModelCard,
        tokenizer: TextTokenizer,
        limits: Limits,
        query: EncodedQuery,
        stop_if_unwanted: Callable[[], None] = always_wanted,
    ) -> None:
        self._card = card
        self._limits = limits
        self._field = labels_field(request)
        self._characters = 0  # that were encoded with labels so far
        self._normalization = request.options.label_normalization
        self._labels = request.labels
        self._of_text: TextLabels | None = None
        self._fixed: Behind | None = None
        if request.labels is not None and query.label_place is not None:
            self.columns = self.fewest_tokens = len(request.labels)
            self.most_rows = windows_at_a_time(request.labels)
            self._of_text = TextLabels(
                tokenizer, request.labels, query.label_place, self._count_characters, stop_if_unwanted
            )
        else:
            # Behind token ids, the text of a label is encoded alone.
            sequences = request.label_token_sequences or tuple(
                tuple(tokenizer.encode_behind_text(label)) for label in request.labels or ()
            )
            for n, sequence in enumerate(sequences):
                check_range(sequence, card, f"{self._field}[{n}]")
            self.columns, self.fewest_tokens = len(sequences), sum(map(len, sequences))
            self.most_rows = max(1, MOST_PAIRS // max(1, self.columns, self.fewest_tokens))
            self._fixed = Behind.of((0,) * len(sequences), sequences)
            self._check(self._fixed, "the items")

    def behind(self, rows: Rows, items: Sequence[Any], first: int) -> tuple[Rows, Continuations]:
        found = self._found(items, first)
        replaced, lengths, tokens = map(np.concatenate, zip(*found, strict=True))
        kept = rows.sequence_lengths[:, None] - replaced.reshape(len(rows), self.columns)
        _check_kept(kept, first, "a label merges with the whole of query and {}, so that nothing stands before it")
        return rows, Continuations(tokens, lengths, kept.reshape(-1).astype(np.int32), self._divisors(lengths))

    def _found(self, items: Sequence[Any], first: int) -> list[Behind]:
        """Return the labels behind each item, after checking them."""
        if self._fixed is not None:
            return [self._fixed] * len(items)
        assert self._of_text is not None
        found = list(self._of_text.behind(items))
        # Labels behind the same window are the same object, and are checked once.
        checked: set[int] = set()
        for n, one in enumerate(found, first):
            if id(one) not in checked:
                self._check(one, f"items[{n}]")
                checked.add(id(one))
        return found

    def _check(self, behind: Behind, item: str) -> None:
        """Check the labels behind an item. item: its name in messages."""
        if not behind.lengths.all():
            where = f"{self._field}[{int(np.argmin(behind.lengths))}]"
            message = f"{where} adds no token to {item}: a label must have one at least"
            raise RequestError(ErrorCode.INVALID_LABEL_TOKEN_IDS, message, param=where)
        delimiter = self._card.delimiter
        bad = behind.tokens >= self._card.vocabulary
        if delimiter is not None:
            bad |= behind.tokens == delimiter
        if bad.any():
            place = int(np.argmax(bad))
            where = f"{self._field}[{int(np.searchsorted(np.cumsum(behind.lengths), place, side='right'))}]"
            token = int(behind.tokens[place])
            raise delimiter_found(token, where) if token == delimiter else bad_id(token, self._card, where)
        self._limits.check_label_tokens(len(behind.tokens), self._field)

    def _count_characters(self, characters: int) -> None:
        self._characters += characters
        self._limits.check_label_characters(self._characters)

    def _divisors(self, lengths: TokenIds) -> TokenIds:
        match self._normalization:
            case Normalization.TOKENS:
                return lengths
            case Normalization.BYTES:
                assert self._labels is not None, "the request was checked"
                of_each = np.array([len(label.encode()) for label in self._labels], np.int32)
                return np.tile(of_each, len(lengths) // self.columns)
        return np.ones(len(lengths), np.int32)


def _check_kept(kept: npt.NDArray[np.int32], first: int, message: str) -> None:
    """Refuse targets that nothing stands before: the first token of a sequence has no probability. kept: [N, L]."""
    if kept.size and int(kept.min()) < 1:
        where = f"items[{first + int(np.argmax(kept.min(axis=1) < 1))}]"
        raise RequestError(ErrorCode.EMPTY_QUERY, message.format(where), param=where)


def targets_of(
    request: ScoreRequest,
    card: ModelCard,
    tokenizer: TextTokenizer,
    limits: Limits,
    query: EncodedQuery,
    stop_if_unwanted: Callable[[], None] = always_wanted,
) -> Targets | None:
    """Return what makes the continuations of a request; None if its labels have one token each."""
    match request.options.scoring:
        case Scoring.LIKELIHOOD:
            return OwnTokens() if request.read is None else PromptTokens(request.read)
        case Scoring.SEQUENCE:
            return LabelSequences(request, card, tokenizer, limits, query, stop_if_unwanted)
    return None
