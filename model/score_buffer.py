"""The buffer that collects the scores of a chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from scoring.layout import ChunkWork, Continuations, LabelScores, ScoredChunk, TopTokens

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]  # numbers of rows among those of a chunk, or of targets among those of its continuations


class EngineError(Exception):
    """Work that the engine can't do or must not answer: an internal fault, never one of a validated request."""


@dataclass(slots=True, eq=False)
class ScoreBuffer:
    """What heads say of a chunk of N rows, while it comes in.

    Each place is one that a state is read for: a row, or one of the T targets of the chunk's continuations.
    """

    chunk: ChunkWork
    values: tuple[npt.NDArray[Any], ...]
    """Of rows, for M labels: logits [N, M], log-probabilities [N, M], and the best log-probability of the vocabulary
    [N], if the chunk wants it. Of targets: log-probabilities [T], whether no token is more probable [T], and if it is
    wanted the most probable token [T] and its log-probability [T]."""
    missing: int  # places that nothing is said of so far
    cached_tokens: int = 0  # see :class:`scoring.layout.ScoredChunk`; an item counts once, however many labels it has
    algorithms: set[str] = field(default_factory=set)  # of its rows

    @classmethod
    def of(cls, chunk: ChunkWork) -> ScoreBuffer:
        """Return an empty buffer."""
        if chunk.continuations is not None:
            places = len(chunk.continuations.tokens)
            kinds = [np.float32, np.bool_, *([np.int32, np.float32] if chunk.top else [])]
            return cls(chunk, tuple(np.empty(places, kind) for kind in kinds), places)
        places, labels = len(chunk.rows), len(chunk.label_token_ids)
        shapes = [(places, labels), (places, labels), *([(places,)] if chunk.top else [])]
        return cls(chunk, tuple(np.empty(shape, np.float32) for shape in shapes), places)

    def write(self, places: Places, *values: npt.NDArray[Any]) -> None:
        """Enter what is said of some places, in the order of ``values`` above. Their first axis is of places."""
        for kept, new in zip(self.values, values, strict=True):
            kept[places] = new
        self.missing -= len(places)

    def scored(self) -> ScoredChunk:
        """Return the finished chunk. Raises EngineError for NaN and +inf, so that they are never stored."""
        scored = self._of_rows() if self.chunk.continuations is None else self._of_targets(self.chunk.continuations)
        if (row := scored.scores.impossible_row()) is not None:
            raise EngineError(f"chunk {self.chunk.id}, row {row}: a score is NaN or +inf")
        if scored.top is not None and not (scored.top.logprobs < np.inf).all():
            raise EngineError(f"chunk {self.chunk.id}: the score of a most probable token is NaN or +inf")
        return scored

    def _of_rows(self) -> ScoredChunk:
        return ScoredChunk(self.chunk.id, LabelScores(*self.values), self.cached_tokens, tuple(sorted(self.algorithms)))

    def _of_targets(self, continuations: Continuations) -> ScoredChunk:
        """Return the sums of the targets of each continuation, and what is said of each target."""
        logprobs, greedy, *top = self.values
        lengths = continuations.lengths
        of_continuation = np.repeat(np.arange(len(lengths)), lengths)
        sums = np.bincount(of_continuation, logprobs.astype(np.float64), minlength=len(lengths))
        means = (sums / continuations.divisors).astype(np.float32).reshape(len(self.chunk.rows), self.chunk.columns)
        missed = np.bincount(of_continuation[~greedy], minlength=len(lengths))
        algorithms, of_vocabulary = tuple(sorted(self.algorithms)), TopTokens(*top) if top else None
        scores = LabelScores(means, means)
        return ScoredChunk(self.chunk.id, scores, self.cached_tokens, algorithms, logprobs, missed == 0, of_vocabulary)
