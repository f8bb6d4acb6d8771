"""Plan work a piece at a time, while the steps of earlier pieces are computed.

To plan a group takes the host about as long as an accelerator takes for one of its steps. If all groups of a claim were
planned first, the device would wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from model.score_buffer import ScoreBuffer, TargetBuffer
from model.work.planned import PlannedGroup, WorkPlanner
from scoring.layout import GroupWork

PIECE_STEPS = 4
"""Steps' worth of tokens in a piece, unless a chunk has more. One piece is planned before the device has work."""

SLICE_STEPS = 64
"""Steps' worth of tokens that are computed together, at most. The last steps of a slice are not full."""

Buffers = Sequence[ScoreBuffer | TargetBuffer]


class PlanAhead:
    """The plan of groups of work, a slice at a time. buffers: of the chunks of each group.

    step_tokens: of an accelerator's step; None: all is planned at once, for a device that shares the host's processors.
    """

    def __init__(
        self, planner: WorkPlanner, work: Sequence[tuple[GroupWork, Buffers]], step_tokens: int | None
    ) -> None:
        self.plans: list[PlannedGroup] = []
        """What is planned so far."""
        self._planner = planner
        self._step_tokens = step_tokens
        self._pieces = self._cut(work)
        self._ready: list[PlannedGroup] = []
        self._ready_tokens = 0

    def slices(self) -> Iterator[list[PlannedGroup]]:
        """Yield what is computed together, until everything was."""
        while self._ready or self._plan_piece():
            ready, self._ready, self._ready_tokens = self._ready, [], 0
            yield ready

    def go_on(self) -> None:
        """Plan a piece for the next slice. To be called while a step is computed."""
        if self._step_tokens is not None and self._ready_tokens < SLICE_STEPS * self._step_tokens:
            self._plan_piece()

    def _plan_piece(self) -> bool:
        """Plan a piece. Returns whether there was one. Without an accelerator, plan all of them."""
        planned = False
        for group, buffers, tokens in self._pieces:
            plan = self._planner.plan(group, buffers)
            self.plans.append(plan)
            self._ready.append(plan)
            self._ready_tokens += tokens
            planned = True
            if self._step_tokens is not None:
                break
        return planned

    def _cut(self, work: Sequence[tuple[GroupWork, Buffers]]) -> Iterator[tuple[GroupWork, Buffers, int]]:
        """Yield the pieces of groups, and the tokens of each."""
        for group, buffers in work:
            own = [int(buffer.chunk.rows.lengths.sum()) for buffer in buffers]
            if self._step_tokens is None:
                yield group, buffers, 0
                continue
            first, tokens = 0, len(group.prefix)
            for number, of_chunk in enumerate(own):
                tokens += of_chunk
                if tokens >= PIECE_STEPS * self._step_tokens or number == len(own) - 1:
                    chunks = group.chunks[first : number + 1]
                    yield replace(group, chunks=chunks), buffers[first : number + 1], tokens
                    first, tokens = number + 1, 0
