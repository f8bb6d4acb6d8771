"""From final hidden states to chunks' scores: heads run over rows that were computed in whatever company."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from model.buckets import HEAD_ROWS, Buckets
from model.executables import Executables
from scoring.layout import ChunkWork, Head, LabelScores, Scored, TokenIds

READ_TOKENS = 2_048
"""Tokens, padding included, after which a head runs over what the body has computed since the last one. A head over a
large vocabulary costs as much for a few rows as for many, but a finished chunk should not wait for long either."""

Floats = npt.NDArray[np.float32]
T = TypeVar("T")


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


Read = tuple[Row, Floats]
"""A row and its final hidden state, float32 [width]."""


class Reader:
    """Runs heads over rows as they come in."""

    def __init__(self, executables: Executables, buckets: Buckets) -> None:
        self._executables = executables
        self._buckets = buckets
        self._unread: list[Read] = []
        self._tokens = 0

    def take(self, found: Sequence[Read], tokens: int) -> Iterator[Scored]:
        """Rows that a step of so many tokens has brought; yields the chunks that are finished, if a head ran."""
        self._unread += found
        self._tokens += tokens
        if len(self._unread) >= HEAD_ROWS or self._tokens >= READ_TOKENS:
            yield from self.rest()

    def rest(self) -> Iterator[Scored]:
        """Run a head for each set of labels asked for by the rows not read yet; yields the chunks finished by it."""
        unread, self._unread, self._tokens = self._unread, [], 0
        asked: dict[tuple[Head, tuple[int, ...]], list[Read]] = defaultdict(list)
        for row, hidden in unread:
            asked[row.sheet.chunk.head, row.sheet.chunk.label_token_ids].append((row, hidden))
        for (head, label_ids), part in asked.items():
            for few in batches(part, HEAD_ROWS):
                self._run_head(head, label_ids, few)
        for sheet in {id(row.sheet): row.sheet for row, _ in unread}.values():
            if not sheet.missing:
                yield sheet.scored()

    def _run_head(self, head: Head, label_ids: tuple[int, ...], part: Sequence[Read]) -> None:
        """Score at most HEAD_ROWS rows and write the scores where they belong."""
        key = self._buckets.head(head, len(label_ids))
        labels = np.zeros(key.labels, np.int32)
        labels[: len(label_ids)] = label_ids
        hidden = np.zeros((key.rows, self._executables.config.width), np.float32)
        for n, (_, state) in enumerate(part):
            hidden[n] = state
        outputs = [np.asarray(output) for output in self._executables.head(key, hidden, labels)]
        for n, (row, _) in enumerate(part):
            row.sheet.write(row.index, [output[n, : len(label_ids)] for output in outputs])


def batches(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Runs of at most ``size``."""
    for first in range(0, len(rows), size):
        yield rows[first : first + size]
