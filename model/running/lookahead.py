"""How far the host runs ahead of the device.

Usually the host lays out and dispatches the next step while the device computes the last one, so that the device never
waits for it. Work that preempts then waits for both steps. An accelerator takes milliseconds for a step, in which the
host has heads to take scores from, commits to make and calls to claim. So there, two steps wait for their turn behind
the one that is awaited. On a CPU a step takes from some milliseconds to seconds, and there is little to win: the host
shares its processors with the steps. So there, one step is dispatched ahead, and for a while after each preemption
none: where calls keep coming, each of them would wait for a whole step more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GIVING_WAY_SECONDS = 1.0
"""How long after the end of work that preempted no step is dispatched ahead."""

ACCELERATOR_STEPS = 2
"""Steps that wait for their turn on an accelerator."""


class Lookahead:
    """Says how many steps may be dispatched before an earlier one is complete. For one thread.

    gives_way: whether work that was preempted waits for its steps; otherwise it always runs ahead.
    """

    def __init__(self, *, gives_way: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._gives_way = gives_way
        self._clock = clock
        self._depth = 0  # how much work is under way: one, and one more for each that preempts another
        self._preempted_at = float("-inf")  # when the last work that preempted other work ended

    @contextmanager
    def working(self) -> Iterator[None]:
        """Take notice that work begins and ends. It preempts other work if that has not ended."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth:
                self._preempted_at = self._clock()

    def steps(self) -> int:
        """Return how many steps may wait behind one that is awaited. Preempting work is short, and may run ahead."""
        if not self._gives_way:
            return ACCELERATOR_STEPS
        return int(self._depth > 1 or self._clock() - self._preempted_at >= GIVING_WAY_SECONDS)

    def steps_of_preempted(self) -> int:
        """Return how many steps of work that is preempted are dispatched before the preempting work is complete."""
        return 0 if self._gives_way else ACCELERATOR_STEPS
