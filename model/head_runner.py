"""Runs heads over the final hidden states of rows, and completes chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from model.buckets import label_bucket
from model.forward import Forward
from model.score_buffer import Floats, ReadRow, Row, ScoreBuffer, TargetBuffer, TargetRow
from scoring.layout import Head, ScoredChunk

FLUSH_TOKENS = 2_048
"""Tokens, padding included, that are computed between two runs of heads at most. Over a large vocabulary, a head costs
as much for a few rows as for many; a finished chunk should not wait for long either.
"""

FinalStates = tuple[ReadRow, Floats]
"""A row and the final hidden states of the tokens that it is read at, float32 [read, width], or [width] for one."""


class HeadRunner:
    """Collects final hidden states, and runs heads over many of them at a time."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._rows = forward.shapes.head_rows
        self._waiting: list[FinalStates] = []
        self._states = 0  # of the waiting rows
        self._tokens = 0  # computed since heads ran last

    def add(self, states: Sequence[FinalStates], tokens: int) -> Iterator[ScoredChunk]:
        """Take the states that a step of ``tokens`` tokens has computed; if heads run, yield the finished chunks."""
        self._waiting += states
        self._states += sum(row.read for row, _ in states)
        self._tokens += tokens
        if self._states >= self._rows or self._tokens >= FLUSH_TOKENS:
            yield from self.flush()

    def flush(self) -> Iterator[ScoredChunk]:
        """Run a head for each set of labels among the waiting rows; yield the chunks that are finished by it."""
        waiting, self._waiting, self._states, self._tokens = self._waiting, [], 0, 0
        by_labels: dict[tuple[Head, tuple[int, ...]], list[tuple[Row, Floats]]] = defaultdict(list)
        by_targets: dict[int, list[tuple[TargetRow, Floats]]] = defaultdict(list)
        for row, hidden in waiting:
            if isinstance(row, TargetRow):
                by_targets[label_bucket(row.places.shape[1])].append((row, hidden))
            else:
                by_labels[row.buffer.chunk.head, row.buffer.chunk.label_token_ids].append((row, hidden))
        for (head, label_ids), states in by_labels.items():
            for first in range(0, len(states), self._rows):
                self._run_head(head, label_ids, states[first : first + self._rows])
        for most, of_bucket in by_targets.items():
            self._read_targets(of_bucket, most)
        buffers: dict[int, ScoreBuffer | TargetBuffer] = {id(row.buffer): row.buffer for row, _ in waiting}
        for buffer in buffers.values():
            if not buffer.missing:
                yield buffer.scored()

    def _run_head(self, head: Head, label_ids: tuple[int, ...], states: Sequence[tuple[Row, Floats]]) -> None:
        """Score as many rows as a head takes at most, and write the scores into their buffers."""
        hidden = np.stack([state for _, state in states])
        outputs = [np.asarray(output) for output in self._forward.run_head(head, hidden, label_ids)]
        first = 0
        for _, of_buffer in groupby((row for row, _ in states), lambda row: id(row.buffer)):
            rows = list(of_buffer)
            of_rows = slice(first, first + len(rows))
            rows[0].buffer.write([row.index for row in rows], [output[of_rows, : len(label_ids)] for output in outputs])
            first = of_rows.stop

    def _read_targets(self, states: Sequence[tuple[TargetRow, Floats]], most: int) -> None:
        """Read rows, as many tokens at a time as a head takes, each of which has at most so many targets."""
        hidden = np.concatenate([np.atleast_2d(of_row) for _, of_row in states])
        targets = np.zeros((len(hidden), most), np.int32)
        stops = np.cumsum([row.read for row, _ in states]).tolist()
        for (row, _), stop in zip(states, stops, strict=True):
            read, count = row.places.shape
            targets[stop - read : stop, :count] = row.buffer.continuations.tokens[row.places]
        logprobs, greedy = np.empty(targets.shape, np.float32), np.empty(targets.shape, np.bool_)
        for first in range(0, len(hidden), self._rows):
            some = slice(first, first + self._rows)
            outputs = self._forward.run_target_head(hidden[some], targets[some])
            for found, output in zip((logprobs, greedy), outputs, strict=True):
                found[some] = np.asarray(output)[: len(hidden[some])]
        for (row, _), stop in zip(states, stops, strict=True):
            read, count = row.places.shape
            of_row = slice(stop - read, stop), slice(count)
            row.buffer.write(row.places, logprobs[of_row], greedy[of_row])
