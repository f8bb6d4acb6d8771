"""What is scored and where its scores go: rows of chunks, and a sheet a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scoring.layout import ChunkWork, Head, LabelScores, Scored, TokenIds

Floats = npt.NDArray[np.float32]


class EngineError(Exception):
    """Work that the engine can't do or must not answer: a fault of ours, never of a validated request."""


@dataclass(slots=True, eq=False)
class Sheet:
    """A chunk's scores as they come in: logits and log-probabilities, float32 [N, M].

    cached_tokens: see :class:`scoring.layout.Scored`.
    """

    chunk: ChunkWork
    logits: Floats
    logprobs: Floats
    missing: int
    cached_tokens: int = 0

    @classmethod
    def blank(cls, chunk: ChunkWork) -> Sheet:
        """A sheet with nothing on it."""
        shape = (len(chunk.rows), len(chunk.label_token_ids))
        return cls(chunk, np.empty(shape, np.float32), np.empty(shape, np.float32), len(chunk.rows))

    def write(self, index: int, outputs: Sequence[Floats]) -> None:
        """Enter what the chunk's head said of one row: logits, then log-probabilities where it has them."""
        for sheet, output in zip((self.logits, self.logprobs), outputs, strict=False):
            sheet[index] = output
        self.missing -= 1

    def scored(self) -> Scored:
        """The finished chunk. Raises EngineError where a score is not a number."""
        if np.isnan(self.logits).any():
            raise EngineError(f"chunk {self.chunk.id}: a score is not a number")
        asked = self.chunk.head is Head.LOGPROBS
        return Scored(self.chunk.id, LabelScores(self.logits, self.logprobs if asked else None), self.cached_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One item: its own tokens, int32 [length], how much of its prefix it sees, and where its scores go."""

    tokens: TokenIds
    prefix_end: int
    sheet: Sheet
    index: int
