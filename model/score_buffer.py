"""The rows to be scored, and the buffers that collect the scores of a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scoring.layout import ChunkWork, Head, LabelScores, ScoredChunk, TokenIds

Floats = npt.NDArray[np.float32]


class EngineError(Exception):
    """Work that the engine can't do or must not answer: an internal fault, never one of a validated request."""


@dataclass(slots=True, eq=False)
class ScoreBuffer:
    """The scores of a chunk of N rows and M labels, while they come in."""

    chunk: ChunkWork
    logits: Floats  # [N, M]
    logprobs: Floats  # [N, M]
    missing: int  # rows without scores so far
    cached_tokens: int = 0  # see :class:`scoring.layout.ScoredChunk`
    algorithms: set[str] = field(default_factory=set)  # of its rows

    @classmethod
    def of(cls, chunk: ChunkWork) -> ScoreBuffer:
        """Return an empty buffer."""
        shape = (len(chunk.rows), len(chunk.label_token_ids))
        return cls(chunk, np.empty(shape, np.float32), np.empty(shape, np.float32), len(chunk.rows))

    def write(self, indices: Sequence[int], outputs: Sequence[Floats]) -> None:
        """Enter the scores of some rows, [rows, M] each: logits, and log-probabilities where the head computes them."""
        for buffer, output in zip((self.logits, self.logprobs), outputs, strict=False):
            buffer[indices] = output
        self.missing -= len(indices)

    def scored(self) -> ScoredChunk:
        """Return the finished chunk. Raises EngineError for NaN and +inf, so that they are never stored."""
        has_logprobs = self.chunk.head is Head.LOGPROBS
        scores = LabelScores(self.logits, self.logprobs if has_logprobs else None)
        if (row := scores.impossible_row()) is not None:
            raise EngineError(f"chunk {self.chunk.id}, row {row}: a score is NaN or +inf")
        return ScoredChunk(self.chunk.id, scores, self.cached_tokens, tuple(sorted(self.algorithms)))


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One item."""

    tokens: TokenIds  # the item's own, int32 [length]
    prefix_end: int  # tokens of the prefix that it sees
    buffer: ScoreBuffer  # where its scores go
    index: int  # its number in the buffer's chunk
