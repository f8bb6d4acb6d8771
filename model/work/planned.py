"""Groups of work and what is computed for their rows, by which algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from model.extending import GroupRows, cache_key
from model.prefixes.cache import PrefixCache
from model.score_buffer import EngineError, Row, ScoreBuffer, TargetBuffer
from model.work.continuations import ContinuationRows, Item
from scoring.layout import ChunkWork, GroupWork, Rows
from scoring.planning.algorithms import Algorithm, Choice
from scoring.planning.continuations import (
    ContinuationLengths,
    ContinuationPlan,
    estimate_continuations,
    plan_continuations,
)
from scoring.planning.estimates import NOTHING, Estimate, GroupLengths
from scoring.planning.planner import Assignment, Planner


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows and branches of a group that are computed in one way."""

    choice: Choice
    work: GroupRows
    items: int


@dataclass(frozen=True, slots=True, eq=False)
class PlannedGroup:
    """A group and the algorithms that its rows are assigned to."""

    parts: Sequence[Part]
    labels: tuple[GroupLengths, Sequence[Assignment]] | None  # of rows that are scored with labels of one token
    targets: tuple[GroupLengths, ContinuationLengths, ContinuationPlan] | None  # of rows that have continuations

    def estimate(self, planner: Planner) -> Estimate:
        """Estimate the plan by the stored rates."""
        total = NOTHING if self.labels is None else planner.estimate(*self.labels)
        if self.targets is not None:
            lengths, continuations, plan = self.targets
            if self.labels is not None:  # whose estimate has the prefix
                lengths = replace(lengths, cached=True)
            total += estimate_continuations(planner, lengths, continuations, plan)
        return total


@dataclass(frozen=True, slots=True, eq=False)
class WorkPlanner:
    """Plans groups of work for one engine."""

    planner: Planner
    cache: PrefixCache
    context: int  # tokens of the longest sequence that is served

    def plan(self, group: GroupWork, buffers: Sequence[ScoreBuffer | TargetBuffer]) -> PlannedGroup:
        """Plan a group. Raises EngineError for a sequence that is empty or longer than the context."""
        of_labels = [buffer for buffer in buffers if isinstance(buffer, ScoreBuffer)]
        of_targets = [buffer for buffer in buffers if isinstance(buffer, TargetBuffer)]
        labels = self._of_labels(group, of_labels) if of_labels else None
        targets = self._of_targets(group, of_targets) if of_targets else None
        parts = [*(labels[0] if labels else ()), *(targets[0] if targets else ())]
        return PlannedGroup(parts, labels and labels[1], targets and targets[1])

    def rows(self, buffer: ScoreBuffer, prefix_length: int) -> Iterator[Row]:
        """Return the rows of a chunk."""
        self._check(buffer.chunk, prefix_length)
        rows = buffer.chunk.rows
        starts = np.cumsum(rows.lengths) - rows.lengths
        for index, (start, length, prefix_end) in enumerate(
            zip(starts.tolist(), rows.lengths.tolist(), rows.prefix_ends.tolist(), strict=True)
        ):
            yield Row(rows.tokens[start : start + length], prefix_end, buffer, index)

    def _of_labels(
        self, group: GroupWork, buffers: Sequence[ScoreBuffer]
    ) -> tuple[list[Part], tuple[GroupLengths, Sequence[Assignment]]]:
        rows = [row for buffer in buffers for row in self.rows(buffer, len(group.prefix))]
        lengths = self._lengths(group, buffers)
        assignments = self.planner.plan(lengths)
        parts = []
        for one in assignments:
            of_all = len(assignments) == 1  # Nearly always, and then rows need not be looked at one by one.
            for buffer in buffers if of_all else {rows[n].buffer for n in one.rows.tolist()}:
                buffer.algorithms.add(one.choice.algorithm.value)
            parts.append(Part(one.choice, GroupRows(group, [rows[n] for n in one.rows]), len(one.rows)))
        return parts, (lengths, assignments)

    def _of_targets(
        self, group: GroupWork, buffers: Sequence[TargetBuffer]
    ) -> tuple[list[Part], tuple[GroupLengths, ContinuationLengths, ContinuationPlan]]:
        for buffer in buffers:
            self._check(buffer.chunk, len(group.prefix))
        lengths = self._lengths(group, buffers)
        continuations = ContinuationLengths.join([(buffer.chunk.rows, buffer.continuations) for buffer in buffers])
        plan = plan_continuations(self.planner, lengths, continuations)
        choice_of = np.zeros(len(lengths), np.int64)
        for number, one in enumerate(plan.assignments):
            choice_of[one.rows] = number
        made = [ContinuationRows(self.planner.estimator.shapes) for _ in plan.assignments]
        first_row = first_way = 0
        for buffer in buffers:
            ways = plan.ways[first_way : first_way + len(buffer.continuations)].tolist()
            of_rows = choice_of[first_row : first_row + len(buffer.chunk.rows)].tolist()
            self._add_items(group, buffer, ways, [(made[n], plan.assignments[n].choice) for n in of_rows])
            first_row, first_way = first_row + len(of_rows), first_way + len(ways)
        parts = [
            Part(one.choice, GroupRows(group, rows.rows, rows.branches), len(one.rows))
            for one, rows in zip(plan.assignments, made, strict=True)
        ]
        return parts, (lengths, continuations, plan)

    def _add_items(
        self, group: GroupWork, buffer: TargetBuffer, ways: list[int], of_rows: list[tuple[ContinuationRows, Choice]]
    ) -> None:
        """Make the rows of a chunk's continuations. ways: of each; of_rows: where each item's go, and its choice."""
        rows, labels = buffer.chunk.rows, buffer.chunk.columns
        row_stops, stops = np.cumsum(rows.lengths).tolist(), np.cumsum(buffer.continuations.lengths).tolist()
        for index, (made, choice) in enumerate(of_rows):
            own = rows.tokens[row_stops[index] - int(rows.lengths[index]) : row_stops[index]]
            is_serial = choice.algorithm is Algorithm.SERIAL
            item = Item(group.prefix, int(rows.prefix_ends[index]), own, buffer, is_serial)
            made.add(item, index * labels, (index + 1) * labels, ways, stops)
            buffer.algorithms.add(choice.algorithm.value)

    def _lengths(self, group: GroupWork, buffers: Sequence[ScoreBuffer | TargetBuffer]) -> GroupLengths:
        rows = Rows.join([buffer.chunk.rows for buffer in buffers])
        return GroupLengths(len(group.prefix), rows.lengths, rows.prefix_ends, cache_key(group) in self.cache)

    def _check(self, chunk: ChunkWork, prefix_length: int) -> None:
        """Raise EngineError for a row that is too long, too short, or sees more than the prefix."""
        rows, longest = chunk.rows, chunk.rows.sequence_lengths
        wrong = (longest < 1) | (longest > self.context) | (rows.prefix_ends < 0) | (rows.prefix_ends > prefix_length)
        if wrong.any():
            row = int(wrong.argmax())
            raise EngineError(
                f"chunk {chunk.id}, row {row}: {rows.lengths[row]} tokens behind {rows.prefix_ends[row]} of a prefix "
                f"of {prefix_length}, the context is {self.context}"
            )
        if chunk.continuations is None or not chunk.columns:
            return
        continuations, whole = chunk.continuations, np.repeat(longest, chunk.columns)
        wrong = (continuations.kept > whole) | (continuations.sequence_lengths > self.context)
        if wrong.any():
            number = int(wrong.argmax())
            raise EngineError(
                f"chunk {chunk.id}, continuation {number}: {continuations.lengths[number]} targets behind "
                f"{continuations.kept[number]} of {whole[number]} tokens, the context is {self.context}"
            )
