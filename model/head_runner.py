"""Runs heads over the final hidden states of rows, and completes chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from model.forward import Forward
from model.score_buffer import Floats, Row
from scoring.layout import Head, ScoredChunk

FLUSH_TOKENS = 2_048
"""Tokens, padding included, that are computed between two runs of heads at most. Over a large vocabulary, a head costs
as much for a few rows as for many; a finished chunk should not wait for long either.
"""

FinalState = tuple[Row, Floats]  # a row and its final hidden state, float32 [width]


class HeadRunner:
    """Collects final hidden states, and runs heads over many of them at a time."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._rows = forward.shapes.head_rows
        self._waiting: list[FinalState] = []
        self._tokens = 0  # computed since heads ran last

    def add(self, states: Sequence[FinalState], tokens: int) -> Iterator[ScoredChunk]:
        """Take the states that a step of ``tokens`` tokens has computed; if heads run, yield the finished chunks."""
        self._waiting += states
        self._tokens += tokens
        if len(self._waiting) >= self._rows or self._tokens >= FLUSH_TOKENS:
            yield from self.flush()

    def flush(self) -> Iterator[ScoredChunk]:
        """Run a head for each set of labels among the waiting rows; yield the chunks that are finished by it."""
        waiting, self._waiting, self._tokens = self._waiting, [], 0
        by_labels: dict[tuple[Head, tuple[int, ...]], list[FinalState]] = defaultdict(list)
        for row, hidden in waiting:
            by_labels[row.buffer.chunk.head, row.buffer.chunk.label_token_ids].append((row, hidden))
        for (head, label_ids), states in by_labels.items():
            for first in range(0, len(states), self._rows):
                self._run_head(head, label_ids, states[first : first + self._rows])
        for buffer in {id(row.buffer): row.buffer for row, _ in waiting}.values():
            if not buffer.missing:
                yield buffer.scored()

    def _run_head(self, head: Head, label_ids: tuple[int, ...], states: Sequence[FinalState]) -> None:
        """Score as many rows as a head takes at most, and write the scores into their buffers."""
        hidden = np.stack([state for _, state in states])
        outputs = [np.asarray(output) for output in self._forward.run_head(head, hidden, label_ids)]
        first = 0
        for _, of_buffer in groupby((row for row, _ in states), lambda row: id(row.buffer)):
            rows = list(of_buffer)
            of_rows = slice(first, first + len(rows))
            rows[0].buffer.write([row.index for row in rows], [output[of_rows, : len(label_ids)] for output in outputs])
            first = of_rows.stop
