"""Plan work a piece at a time, while the steps of earlier pieces are computed.

To plan a group takes the host about as long as an accelerator takes for one of its steps. If all groups of a claim were
planned first, the device would wait for them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from model.score_buffer import ScoreBuffer
from model.work.planned import Part, PlannedGroup, WorkPlanner
from scoring.layout import GroupWork
from scoring.planning.algorithms import Choice

PIECE_STEPS = 4
"""Steps' worth of tokens that are planned at once, unless a chunk has more: before the first step, and in each."""

REST_STEPS = 2
"""A rest of so few steps' worth of tokens is planned along with a piece, because its own steps would not be full."""

SLICE_STEPS = 24
"""Steps' worth of tokens that are computed together, at most. What a slice takes before its first step must take no
longer than the steps that are dispatched before it; with 32, it did at times. The last piece of a slice may exceed it
by its own length. The last steps of a slice are not full.
"""

Buffers = Sequence[ScoreBuffer]


class PlanAhead:
    """The plan of groups of work, a slice at a time. buffers: of the chunks of each group.

    step_tokens: of an accelerator's step; None: all is planned at once, for a device that shares the host's processors.
    """

    def __init__(
        self, planner: WorkPlanner, work: Sequence[tuple[GroupWork, Buffers]], step_tokens: int | None
    ) -> None:
        self.cuts: list[PlannedGroup] = []
        """What is planned so far, without its rows, which are of no use once they are computed."""
        self.choices: dict[Choice, list[int]] = defaultdict(list)
        """For how many items of each group an algorithm was chosen."""
        self._planner = planner
        self._step_tokens = step_tokens
        self._pieces = self._cut(work)
        self._left = sum(
            len(group.prefix) + sum(int(buffer.chunk.rows.lengths.sum()) for buffer in buffers)
            for group, buffers in work
        )
        """Tokens that are not planned yet; a query that is planned in several pieces counts once."""
        self._ready: list[Part] = []
        self._ready_tokens = 0

    def slices(self) -> Iterator[list[Part]]:
        """Yield what is computed together, until everything was."""
        while self._ready or self._plan_piece():
            ready, self._ready, self._ready_tokens = self._ready, [], 0
            yield ready

    def go_on(self) -> None:
        """Plan a piece for the next slice. To be called while a step is computed."""
        if self._step_tokens is not None and self._ready_tokens < SLICE_STEPS * self._step_tokens:
            self._plan_piece()

    def _plan_piece(self) -> bool:
        """Plan some steps' worth of pieces, or without an accelerator, all. Returns whether there was one."""
        before, wanted = len(self.cuts), math.inf
        if self._step_tokens is not None and self._left > (PIECE_STEPS + REST_STEPS) * self._step_tokens:
            wanted = self._ready_tokens + PIECE_STEPS * self._step_tokens
        while self._ready_tokens < wanted and (piece := next(self._pieces, None)) is not None:
            group, buffers, tokens = piece
            plan = self._planner.plan(group, buffers)
            self.cuts.append(replace(plan, parts=()))
            for part in plan.parts:
                self.choices[part.choice].append(part.items)
            self._ready += plan.parts
            self._ready_tokens += tokens
            self._left -= tokens
        return len(self.cuts) > before

    def _cut(self, work: Sequence[tuple[GroupWork, Buffers]]) -> Iterator[tuple[GroupWork, Buffers, int]]:
        """Yield the pieces of groups, and the tokens of each."""
        for group, buffers in work:
            if self._step_tokens is None:
                yield group, buffers, 0
                continue
            own = [int(buffer.chunk.rows.lengths.sum()) for buffer in buffers]
            first, tokens = 0, len(group.prefix)
            for number, of_chunk in enumerate(own):
                tokens += of_chunk
                if tokens >= PIECE_STEPS * self._step_tokens or number == len(own) - 1:
                    chunks = group.chunks[first : number + 1]
                    yield replace(group, chunks=chunks), buffers[first : number + 1], tokens
                    first, tokens = number + 1, 0
