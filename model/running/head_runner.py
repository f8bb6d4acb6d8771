"""Has heads run over the final hidden states of rows, and completes chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from jax import Array

from model.buckets import HEAD_ROWS, label_bucket
from model.programs.heads import Heads
from model.rows import Row
from model.score_buffer import Places, ScoreBuffer
from model.states import States
from scoring.layout import Head, ScoredChunk, TokenIds

FLUSH_TOKENS = 2_048
"""Tokens, padding included, that are computed between two runs of heads at most. Over a large vocabulary, a head costs
as much for a few rows as for many; a finished chunk should not wait for long either.
"""

_OF_TARGETS = (np.float32, np.bool_)  # what a head for targets gives of each
_WITH_TOP = (*_OF_TARGETS, np.int32, np.float32)  # and of the vocabulary, if it is asked for

FinalStates = tuple[Row, States]
"""A row and the final hidden states of the tokens that it is read at."""

Outputs = Sequence[npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class RunningHeads:
    """Heads that are dispatched, over the states of some rows."""

    runs: list[tuple[tuple[Array, ...], Callable[[Outputs], None]]]  # what each computes, and who takes it
    buffers: list[ScoreBuffer]  # where it goes

    def finish(self) -> Iterator[ScoredChunk]:
        """Wait for them, and yield the chunks that they finish."""
        for outputs, enter in self.runs:
            enter([np.asarray(output) for output in outputs])
        for buffer in self.buffers:
            if not buffer.missing:
                yield buffer.scored()


class HeadRunner:
    """Collects final hidden states, and has heads run over many of them at a time."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._waiting: list[FinalStates] = []
        self._states = 0  # of the waiting rows
        self._tokens = 0  # computed since heads ran last

    def add(self, states: Sequence[FinalStates], tokens: int) -> RunningHeads | None:
        """Take the states that a step of ``tokens`` tokens computes. Returns the heads that are dispatched, if any."""
        self._waiting += states
        self._states += sum(row.read for row, _ in states)
        self._tokens += tokens
        return self.flush() if self._states >= HEAD_ROWS or self._tokens >= FLUSH_TOKENS else None

    def flush(self) -> RunningHeads | None:
        """Dispatch a head for each set of labels among the waiting rows."""
        waiting, self._waiting, self._states, self._tokens = self._waiting, [], 0, 0
        if not waiting:
            return None
        by_labels: dict[tuple[Head, tuple[int, ...], bool], list[FinalStates]] = defaultdict(list)
        of_targets: dict[bool, list[FinalStates]] = defaultdict(list)
        for row, states in waiting:
            chunk = row.buffer.chunk
            if chunk.continuations is None:
                by_labels[chunk.head, chunk.label_token_ids, chunk.top].append((row, states))
            else:
                of_targets[chunk.top].append((row, states))
        running = RunningHeads([], list({id(row.buffer): row.buffer for row, _ in waiting}.values()))
        for (head, label_ids, top), of_rows in by_labels.items():
            for first in range(0, len(of_rows), HEAD_ROWS):
                some = of_rows[first : first + HEAD_ROWS]
                outputs = self._heads.of_labels(head, [states for _, states in some], label_ids, top=top)
                running.runs.append((outputs, partial(_enter_labels, [row for row, _ in some], len(label_ids))))
        for top, of_rows in of_targets.items():
            running.runs.extend(self._read_targets(of_rows, top=top))
        return running

    def _read_targets(
        self, states: Sequence[FinalStates], *, top: bool
    ) -> Iterator[tuple[tuple[Array, ...], Callable[[Outputs], None]]]:
        """Read rows for their targets. States that have about as many share runs of a head."""
        singles = [of_row.part(number, number + 1) for _, of_row in states for number in range(len(of_row))]
        counts = np.concatenate([row.counts for row, _ in states])
        targets = np.concatenate([_target_tokens(row) for row, _ in states])
        found: list[npt.NDArray[Any]] = [np.empty(len(targets), dtype) for dtype in (_WITH_TOP if top else _OF_TARGETS)]
        of_state, ends = np.repeat(np.arange(len(counts)), counts), np.cumsum(counts)
        column = np.arange(len(targets)) - (ends - counts)[of_state]
        distinct, kind_of = np.unique(counts, return_inverse=True)
        buckets = np.array([label_bucket(int(count)) for count in distinct])[kind_of]
        for most in np.unique(buckets).tolist():
            chosen = np.flatnonzero(buckets == most)
            for first in range(0, len(chosen), HEAD_ROWS):
                some = chosen[first : first + HEAD_ROWS]
                mine = _ranges((ends - counts)[some], counts[some])
                at = np.repeat(np.arange(len(some)), counts[some]), column[mine]
                wanted = np.zeros((len(some), int(counts[some].max())), np.int32)
                wanted[at] = targets[mine]
                outputs = self._heads.of_targets([singles[number] for number in some.tolist()], wanted, top=top)
                yield outputs, partial(_enter_targets, found, mine, at)
        yield (), partial(_write_targets, [row for row, _ in states], found)


def _enter_labels(rows: Sequence[Row], labels: int, outputs: Outputs) -> None:
    """Write the scores of rows into their buffers."""
    first = 0
    for _, of_buffer in groupby(rows, lambda row: id(row.buffer)):
        together = list(of_buffer)
        of_rows = slice(first, first + len(together))
        items = np.concatenate([row.places for row in together])
        logits, logprobs = (output[of_rows, :labels] for output in outputs[:2])
        together[0].buffer.write(items, logits, logprobs, *(output[of_rows, 0] for output in outputs[2:]))
        first = of_rows.stop


def _enter_targets(
    found: Outputs, mine: Places, at: tuple[npt.NDArray[Any], npt.NDArray[Any]], outputs: Outputs
) -> None:
    """Note what a run of a head says of targets. at: the state and the column of each."""
    for number, output in enumerate(outputs):
        # What is said of the vocabulary is the same for all targets of a state.
        found[number][mine] = output[at] if number < len(_OF_TARGETS) else output[at[0], 0]


def _write_targets(rows: Sequence[Row], found: Outputs, _: Outputs) -> None:
    """Write what was found of the targets of rows into their buffers."""
    stops = np.cumsum([len(row.places) for row in rows]).tolist()
    for row, stop in zip(rows, stops, strict=True):
        of_row = slice(stop - len(row.places), stop)
        row.buffer.write(row.places, *(values[of_row] for values in found))


def _target_tokens(row: Row) -> TokenIds:
    continuations = row.buffer.chunk.continuations
    assert continuations is not None
    targets: TokenIds = continuations.tokens[row.places]
    return targets


def _ranges(firsts: Places, counts: Places) -> Places:
    """Return the numbers of several ranges, one after another."""
    stops = np.cumsum(counts)
    found: Places = np.arange(int(counts.sum())) + np.repeat(firsts - (stops - counts), counts)
    return found
