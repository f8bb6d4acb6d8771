"""Runs heads over the final hidden states of rows, and completes chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from model.buckets import label_bucket
from model.forward import Forward
from model.rows import Row
from model.score_buffer import Floats, ScoreBuffer, TargetBuffer, TargetNumbers
from scoring.layout import Head, ScoredChunk, TokenIds

FLUSH_TOKENS = 2_048
"""Tokens, padding included, that are computed between two runs of heads at most. Over a large vocabulary, a head costs
as much for a few rows as for many; a finished chunk should not wait for long either.
"""

_OF_TARGETS = (np.float32, np.bool_)  # what a head for targets gives of each
_WITH_TOP = (*_OF_TARGETS, np.int32, np.float32)  # and of the vocabulary, if it is asked for

FinalStates = tuple[Row, Floats]
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
        by_labels: dict[tuple[Head, tuple[int, ...], bool], list[FinalStates]] = defaultdict(list)
        of_targets: dict[bool, list[FinalStates]] = defaultdict(list)
        for row, hidden in waiting:
            chunk = row.buffer.chunk
            if isinstance(row.buffer, TargetBuffer):
                of_targets[chunk.top].append((row, hidden))
            else:
                by_labels[chunk.head, chunk.label_token_ids, chunk.top].append((row, hidden))
        for (head, label_ids, top), states in by_labels.items():
            for first in range(0, len(states), self._rows):
                self._run_head(head, label_ids, states[first : first + self._rows], top=top)
        for top, states in of_targets.items():
            self._read_targets(states, top=top)
        buffers: dict[int, ScoreBuffer | TargetBuffer] = {id(row.buffer): row.buffer for row, _ in waiting}
        for buffer in buffers.values():
            if not buffer.missing:
                yield buffer.scored()

    def _run_head(self, head: Head, label_ids: tuple[int, ...], states: Sequence[FinalStates], *, top: bool) -> None:
        """Score as many rows as a head takes at most, and write the scores into their buffers."""
        hidden = np.concatenate([np.atleast_2d(state) for _, state in states])
        outputs = [np.asarray(output) for output in self._forward.run_head(head, hidden, label_ids, top=top)]
        first = 0
        for _, of_buffer in groupby((row for row, _ in states), lambda row: id(row.buffer)):
            rows = list(of_buffer)
            of_rows = slice(first, first + len(rows))
            buffer = rows[0].buffer
            assert isinstance(buffer, ScoreBuffer)
            items = np.concatenate([row.places for row in rows])
            logits, logprobs = (output[of_rows, : len(label_ids)] for output in outputs[:2])
            buffer.write(items, logits, logprobs, *(output[of_rows, 0] for output in outputs[2:]))
            first = of_rows.stop

    def _read_targets(self, states: Sequence[FinalStates], *, top: bool) -> None:
        """Read rows for their targets. States that have about as many share runs of a head."""
        hidden = np.concatenate([np.atleast_2d(of_row) for _, of_row in states])
        counts = np.concatenate([row.counts for row, _ in states])
        targets = np.concatenate([_target_tokens(row) for row, _ in states])
        found: list[npt.NDArray[Any]] = [np.empty(len(targets), dtype) for dtype in (_WITH_TOP if top else _OF_TARGETS)]
        of_state, ends = np.repeat(np.arange(len(counts)), counts), np.cumsum(counts)
        column = np.arange(len(targets)) - (ends - counts)[of_state]
        distinct, kind_of = np.unique(counts, return_inverse=True)
        buckets = np.array([label_bucket(int(count)) for count in distinct])[kind_of]
        for most in np.unique(buckets).tolist():
            chosen = np.flatnonzero(buckets == most)
            for first in range(0, len(chosen), self._rows):
                some = chosen[first : first + self._rows]
                mine = _ranges((ends - counts)[some], counts[some])
                at = np.repeat(np.arange(len(some)), counts[some]), column[mine]
                wanted = np.zeros((len(some), int(counts[some].max())), np.int32)
                wanted[at] = targets[mine]
                outputs = self._forward.run_target_head(hidden[some], wanted, top=top)
                for number, output in enumerate(map(np.asarray, outputs)):
                    # What is said of the vocabulary is the same for all targets of a state.
                    found[number][mine] = output[at] if number < len(_OF_TARGETS) else output[at[0], 0]
        stops = np.cumsum([len(row.places) for row, _ in states]).tolist()
        for (row, _), stop in zip(states, stops, strict=True):
            assert isinstance(row.buffer, TargetBuffer)
            of_row = slice(stop - len(row.places), stop)
            row.buffer.write(row.places, *(values[of_row] for values in found))


def _target_tokens(row: Row) -> TokenIds:
    assert isinstance(row.buffer, TargetBuffer)
    return row.buffer.continuations.tokens[row.places]


def _ranges(firsts: TargetNumbers, counts: TargetNumbers) -> TargetNumbers:
    """Return the numbers of several ranges, one after another."""
    stops = np.cumsum(counts)
    found: TargetNumbers = np.arange(int(counts.sum())) + np.repeat(firsts - (stops - counts), counts)
    return found
