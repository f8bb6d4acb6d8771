"""The buffers that collect the scores of a chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from scoring.layout import ChunkWork, Continuations, LabelScores, ScoredChunk, TopTokens

Floats = npt.NDArray[np.float32]
TargetNumbers = npt.NDArray[np.int64]  # numbers of targets among those of a chunk


class EngineError(Exception):
    """Work that the engine can't do or must not answer: an internal fault, never one of a validated request."""


@dataclass(slots=True, eq=False)
class ScoreBuffer:
    """The scores of a chunk of N rows and M labels, while they come in."""

    chunk: ChunkWork
    logits: Floats  # [N, M]
    logprobs: Floats  # [N, M]
    missing: int  # rows without scores so far
    top_logprobs: Floats | None  # [N]; None: the chunk does not want them
    cached_tokens: int = 0  # see :class:`scoring.layout.ScoredChunk`
    algorithms: set[str] = field(default_factory=set)  # of its rows

    @classmethod
    def of(cls, chunk: ChunkWork) -> ScoreBuffer:
        """Return an empty buffer."""
        rows, shape = len(chunk.rows), (len(chunk.rows), len(chunk.label_token_ids))
        top = np.empty(rows, np.float32) if chunk.top else None
        return cls(chunk, np.empty(shape, np.float32), np.empty(shape, np.float32), rows, top)

    def write(self, indices: TargetNumbers, logits: Floats, logprobs: Floats, *top: Floats) -> None:
        """Enter the scores of some rows, [rows, M] each. top: the log-probabilities of the vocabulary, if wanted."""
        self.logits[indices], self.logprobs[indices] = logits, logprobs
        if self.top_logprobs is not None:
            (self.top_logprobs[indices],) = top
        self.missing -= len(indices)

    def scored(self) -> ScoredChunk:
        """Return the finished chunk. Raises EngineError for NaN and +inf, so that they are never stored."""
        scores = LabelScores(self.logits, self.logprobs, self.top_logprobs)
        _check(scores, self.chunk)
        return ScoredChunk(self.chunk.id, scores, self.cached_tokens, tuple(sorted(self.algorithms)))


@dataclass(slots=True, eq=False)
class TargetBuffer:
    """The log-probabilities of the T targets of a chunk's continuations, while they come in."""

    chunk: ChunkWork
    continuations: Continuations  # the chunk's
    logprobs: Floats  # [T]
    greedy: npt.NDArray[np.bool_]  # [T]: whether no token is more probable
    missing: int  # targets without log-probabilities so far
    top: TopTokens | None  # None: the chunk does not want them
    cached_tokens: int = 0  # see :class:`scoring.layout.ScoredChunk`; an item counts once, however many labels it has
    algorithms: set[str] = field(default_factory=set)  # of its rows

    @classmethod
    def of(cls, chunk: ChunkWork, continuations: Continuations) -> TargetBuffer:
        """Return an empty buffer."""
        count = len(continuations.tokens)
        top = TopTokens(np.empty(count, np.int32), np.empty(count, np.float32)) if chunk.top else None
        return cls(chunk, continuations, np.empty(count, np.float32), np.empty(count, np.bool_), count, top)

    def write(
        self, places: TargetNumbers, logprobs: Floats, greedy: npt.NDArray[np.bool_], *top: npt.NDArray[Any]
    ) -> None:
        """Enter some targets, arrays of one shape. top: the most probable tokens and their scores, if wanted."""
        self.logprobs[places] = logprobs
        self.greedy[places] = greedy
        if self.top is not None:
            self.top.ids[places], self.top.logprobs[places] = top
        self.missing -= places.size

    def scored(self) -> ScoredChunk:
        """Return the finished chunk. Raises EngineError for NaN and +inf, so that they are never stored."""
        lengths, (rows, labels) = self.continuations.lengths, (len(self.chunk.rows), self.chunk.columns)
        of_continuation = np.repeat(np.arange(len(lengths)), lengths)
        sums = np.bincount(of_continuation, self.logprobs.astype(np.float64), minlength=len(lengths))
        values = (sums / self.continuations.divisors).astype(np.float32).reshape(rows, labels)
        missed = np.bincount(of_continuation[~self.greedy], minlength=len(lengths))
        scores = LabelScores(values, values)
        _check(scores, self.chunk)
        if self.top is not None and not (self.top.logprobs < np.inf).all():
            raise EngineError(f"chunk {self.chunk.id}: the score of a most probable token is NaN or +inf")
        algorithms = tuple(sorted(self.algorithms))
        return ScoredChunk(self.chunk.id, scores, self.cached_tokens, algorithms, self.logprobs, missed == 0, self.top)


def buffer_of(chunk: ChunkWork) -> ScoreBuffer | TargetBuffer:
    """Return an empty buffer for a chunk."""
    return ScoreBuffer.of(chunk) if chunk.continuations is None else TargetBuffer.of(chunk, chunk.continuations)


def _check(scores: LabelScores, chunk: ChunkWork) -> None:
    if (row := scores.impossible_row()) is not None:
        raise EngineError(f"chunk {chunk.id}, row {row}: a score is NaN or +inf")
