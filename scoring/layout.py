"""What is scored, as arrays: a group is a prefix and the rows that extend it.

The sequence of row ``n`` is ``prefix[:prefix_ends[n]]`` followed by the row's own tokens. Its score is read after its
last token; for an empty row, that is the last token of its part of the prefix. The rows of a group may use parts of the
prefix of different lengths: query and item are joined as text before they are tokenized, and so the end of the query
may merge with the beginning of an item into one token (docs/tokenization.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]  # token ids, shape [length]

# Where the tokens of each of N sequences begin, and where the last ones end, [N + 1]. They are int64, because a hundred
# thousand long items have more tokens than an int32 can count.
Places = npt.NDArray[np.int64]

_HEADER = np.dtype("<i4")


class Head(StrEnum):
    """What the engine computes from the final hidden states."""

    # Either gives label logits, and the labels' log-probabilities over the whole vocabulary. A product with few columns
    # may be rounded otherwise than one with many, so they are two, and each kind of scores has the bits of its own.
    LOGPROBS = "logprobs"  # the logits are those of the whole vocabulary
    LOGITS = "logits"  # the logits, of which a softmax is taken, are computed by the labels' columns alone


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The tokens of N rows behind one prefix, packed end to end."""

    tokens: TokenIds  # int32 [T]: the rows' own tokens, without the prefix
    lengths: TokenIds  # int32 [N]: number of own tokens of each row
    prefix_ends: TokenIds  # int32 [N]: number of leading tokens of the prefix that belong to each row's sequence

    def __post_init__(self) -> None:
        if len(self.lengths) != len(self.prefix_ends):
            raise ValueError(f"{len(self.lengths)} lengths but {len(self.prefix_ends)} prefix ends")
        if int(self.lengths.sum()) != len(self.tokens):
            raise ValueError(f"lengths sum to {int(self.lengths.sum())} but there are {len(self.tokens)} tokens")

    @classmethod
    def pack(cls, rows: Sequence[Sequence[int] | TokenIds], prefix_ends: Sequence[int] | TokenIds) -> Rows:
        """Pack rows given as one sequence of token ids each."""
        arrays = [np.asarray(row, np.int32) for row in rows]
        return cls(
            tokens=np.concatenate(arrays) if arrays else np.zeros(0, np.int32),
            lengths=np.array([len(row) for row in arrays], np.int32),
            prefix_ends=np.asarray(prefix_ends, np.int32),
        )

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Concatenate several packed arrays of rows."""
        if not parts:
            return cls.pack([], [])
        return cls(
            tokens=np.concatenate([part.tokens for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
            prefix_ends=np.concatenate([part.prefix_ends for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """How many bytes the arrays take."""
        return int(self.tokens.nbytes + self.lengths.nbytes + self.prefix_ends.nbytes)

    @property
    def sequence_lengths(self) -> TokenIds:
        """int32 [N]: number of tokens of each whole sequence, prefix included."""
        return self.prefix_ends + self.lengths

    def part(self, start: int, stop: int, places: Places | None = None) -> Rows:
        """Return the rows from ``start`` to ``stop``. places: of the tokens of all rows, if they are known."""
        first, last = (self.lengths[:row].sum() if places is None else places[row] for row in (start, stop))
        return Rows(self.tokens[first:last], self.lengths[start:stop], self.prefix_ends[start:stop])

    def to_bytes(self) -> bytes:
        """Serialise as little-endian int32: N, then lengths, prefix ends and tokens."""
        parts = (np.array([len(self)], _HEADER), self.lengths, self.prefix_ends, self.tokens)
        return b"".join(np.ascontiguousarray(part, _HEADER).tobytes() for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Rows:
        """Read what :meth:`to_bytes` wrote."""
        values = np.frombuffer(data, _HEADER)
        n = int(values[0])
        return cls(tokens=values[1 + 2 * n :], lengths=values[1 : 1 + n], prefix_ends=values[1 + n : 1 + 2 * n])


@dataclass(frozen=True, slots=True, eq=False)
class Continuations:
    """Target tokens behind N rows, L sequences of them for each row, whose log-probabilities are wanted.

    Continuation ``n * L + l`` belongs to row ``n`` and label ``l``. Its sequence is the first ``kept`` tokens of the
    row's whole sequence (prefix and own tokens), followed by its own tokens. Each of its own tokens is a target, whose
    log-probability is read one position before it.
    """

    tokens: TokenIds  # int32 [T]: the targets of all continuations, end to end
    lengths: TokenIds  # int32 [N * L]: number of targets of each; 0 only for an item of a likelihood without own tokens
    kept: TokenIds  # int32 [N * L]: at least 1; less than the row's whole sequence where text merges at the boundary
    divisors: npt.NDArray[np.int32]  # [N * L]: what the sum is divided by: 1, the number of targets, or a label's bytes

    def __post_init__(self) -> None:
        if not len(self.lengths) == len(self.kept) == len(self.divisors):
            lengths, kept, divisors = len(self.lengths), len(self.kept), len(self.divisors)
            raise ValueError(f"{lengths} lengths, {kept} numbers of kept tokens and {divisors} divisors")
        if int(self.lengths.sum()) != len(self.tokens):
            raise ValueError(f"lengths sum to {int(self.lengths.sum())} but there are {len(self.tokens)} tokens")
        if len(self) and (int(self.lengths.min()) < 0 or int(self.kept.min()) < 1 or int(self.divisors.min()) < 1):
            raise ValueError("a continuation has a negative length, keeps no token, or is divided by less than 1")

    @classmethod
    def pack(
        cls,
        targets: Sequence[Sequence[int] | TokenIds],
        kept: Sequence[int] | TokenIds,
        divisors: Sequence[int] | TokenIds | None = None,
    ) -> Continuations:
        """Pack continuations given as one sequence of target tokens each. divisors: None divides by 1."""
        rows = Rows.pack(targets, kept)
        ones = np.ones(len(rows), np.int32)
        return cls(
            rows.tokens, rows.lengths, rows.prefix_ends, ones if divisors is None else np.asarray(divisors, np.int32)
        )

    @classmethod
    def join(cls, parts: Sequence[Continuations]) -> Continuations:
        """Concatenate several packed arrays of continuations."""
        if not parts:
            return cls.pack([], [])
        return cls(
            tokens=np.concatenate([part.tokens for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
            kept=np.concatenate([part.kept for part in parts]),
            divisors=np.concatenate([part.divisors for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """How many bytes the arrays take."""
        return int(self.tokens.nbytes + self.lengths.nbytes + self.kept.nbytes + self.divisors.nbytes)

    @property
    def sequence_lengths(self) -> TokenIds:
        """int32 [N * L]: number of tokens of each whole sequence, targets included."""
        return self.kept + self.lengths

    def of_rows(self, start: int, stop: int, rows: int, places: Places | None = None) -> Continuations:
        """Return the continuations of the rows from ``start`` to ``stop``. rows: how many rows there are in all.

        places: of the tokens of all continuations, if they are known.
        """
        labels = len(self) // max(1, rows)
        part = slice(start * labels, stop * labels)
        first, last = (self.lengths[:n].sum() if places is None else places[n] for n in (part.start, part.stop))
        return Continuations(self.tokens[first:last], self.lengths[part], self.kept[part], self.divisors[part])

    def to_bytes(self) -> bytes:
        """Serialise as little-endian int32: their number, then lengths, kept, divisors and tokens."""
        parts = (np.array([len(self)], _HEADER), self.lengths, self.kept, self.divisors, self.tokens)
        return b"".join(np.ascontiguousarray(part, _HEADER).tobytes() for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Continuations:
        """Read what :meth:`to_bytes` wrote."""
        values = np.frombuffer(data, _HEADER)
        n = int(values[0])
        lengths, kept, divisors = values[1 : 1 + 3 * n].reshape(3, n)
        return cls(values[1 + 3 * n :], lengths, kept, divisors)


@dataclass(frozen=True, slots=True, eq=False)
class LabelScores:
    """What the engine computed for N rows and M labels."""

    logits: npt.NDArray[np.float32]  # [N, M]
    logprobs: npt.NDArray[np.float32] | None  # [N, M]: over the whole vocabulary; None: an earlier version kept none
    top_logprobs: npt.NDArray[np.float32] | None = None  # [N]: of the vocabulary's most probable token; None: not kept

    def __len__(self) -> int:
        return len(self.logits)

    @classmethod
    def join(cls, parts: Sequence[LabelScores]) -> LabelScores:
        """Concatenate the scores of one or more chunks. What one of them lacks, the whole lacks."""
        if len(parts) == 1:
            return parts[0]
        logprobs = [part.logprobs for part in parts if part.logprobs is not None]
        tops = [part.top_logprobs for part in parts if part.top_logprobs is not None]
        return cls(
            np.concatenate([part.logits for part in parts]),
            np.concatenate(logprobs) if len(logprobs) == len(parts) else None,
            np.concatenate(tops) if len(tops) == len(parts) else None,
        )

    def part(self, rows: slice | npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> LabelScores:
        """Return the scores of some rows: of a slice, of those that are true, or of those with these numbers."""
        logprobs, top = self.logprobs, self.top_logprobs
        return LabelScores(
            self.logits[rows], None if logprobs is None else logprobs[rows], None if top is None else top[rows]
        )

    def impossible_row(self) -> int | None:
        """Return the first row with NaN or +inf, which no sound model gives; None if there is no such row.

        A logit or a log-probability of -inf is possible.
        """
        impossible = np.zeros(len(self), np.bool_)
        top = None if self.top_logprobs is None else self.top_logprobs[:, None]
        for values in (self.logits, self.logprobs, top):
            if values is not None:
                impossible |= ~(values < np.inf).all(axis=1)
        return int(impossible.argmax()) if impossible.any() else None


@dataclass(frozen=True, slots=True, eq=False)
class ChunkWork:
    """The rows of one chunk, and what to compute for them."""

    id: int  # chosen by the caller; the result carries it, too
    rows: Rows
    label_token_ids: tuple[int, ...]  # empty where there are continuations
    head: Head
    continuations: Continuations | None = None  # what is scored behind each row instead of labels of one token
    keep_targets: bool = False  # whether the log-probabilities of single targets are stored with their sums
    top: bool = False  # whether the most probable token of the vocabulary is wanted at each place that is read

    @property
    def columns(self) -> int:
        """How many scores each row gets."""
        if self.continuations is None:
            return len(self.label_token_ids)
        return len(self.continuations) // max(1, len(self.rows))


class AdapterError(Exception):
    """The adapter that work names is gone, or can't be served. The message says which and why."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupWork:
    """Chunks, perhaps of several jobs, that share a prefix."""

    owner: str  # tenant and tokenizer: work on a prefix is shared among groups of one owner only
    prefix: TokenIds
    chunks: tuple[ChunkWork, ...]
    adapter: str | None = None  # that all of them are scored with; None: the model alone


@dataclass(frozen=True, slots=True, eq=False)
class TopTokens:
    """The most probable token of the vocabulary in the place of each of T targets."""

    ids: TokenIds  # int32 [T]: of equally probable tokens, the lowest id
    logprobs: npt.NDArray[np.float32]  # [T]


@dataclass(frozen=True, slots=True, eq=False)
class TargetScores:
    """What the engine computed for single targets, and whether they were most probable."""

    token_logprobs: npt.NDArray[np.float32]  # [T]: of each target
    greedy: npt.NDArray[np.bool_]  # [N * L]: whether every target of the continuation was a most probable token
    top: TopTokens | None = None  # None: not kept

    @classmethod
    def join(cls, parts: Sequence[TargetScores]) -> TargetScores:
        """Concatenate the scores of any number of chunks. What one of them lacks, the whole lacks."""
        if len(parts) == 1:
            return parts[0]
        tops = [part.top for part in parts if part.top is not None]
        return cls(
            np.concatenate([np.zeros(0, np.float32), *(part.token_logprobs for part in parts)]),
            np.concatenate([np.zeros(0, np.bool_), *(part.greedy for part in parts)]),
            TopTokens(np.concatenate([top.ids for top in tops]), np.concatenate([top.logprobs for top in tops]))
            if parts and len(tops) == len(parts)
            else None,
        )

    def part(self, targets: slice, continuations: slice) -> TargetScores:
        """Return the scores of some continuations, and of their targets."""
        top = None if self.top is None else TopTokens(self.top.ids[targets], self.top.logprobs[targets])
        return TargetScores(self.token_logprobs[targets], self.greedy[continuations], top)


class AdapterUsed(NamedTuple):
    """The adapter that a chunk was scored with."""

    name: str
    fingerprint: str  # of the weights of model and adapter


@dataclass(frozen=True, slots=True, eq=False)
class ScoredChunk:
    """The scores of one chunk."""

    id: int  # as of its ChunkWork
    scores: LabelScores
    cached_tokens: int  # tokens of its sequences that did not have to be computed
    algorithms: tuple[str, ...] = ()  # that its rows were computed by, in alphabetical order
    # Of the continuations, None without them. With them, both arrays of ``scores`` are the sums of the targets'
    # log-probabilities, each divided by its divisor.
    token_logprobs: npt.NDArray[np.float32] | None = None  # [T]: of each target
    greedy: npt.NDArray[np.bool_] | None = None  # [N * L]: whether every target was a most probable token
    top: TopTokens | None = None  # where the work asks for it
    adapter: AdapterUsed | None = None
    recomputed: int = 0  # items more than its job says: see jobs.store.records.PartialChunk

    @property
    def targets(self) -> TargetScores | None:
        """The scores of single targets; None without continuations."""
        if self.token_logprobs is None or self.greedy is None:
            return None
        return TargetScores(self.token_logprobs, self.greedy, self.top)
