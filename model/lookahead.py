"""How far the host runs ahead of the device.

Usually the host lays out and dispatches the next step while the device computes the last one, so that the device never
waits for it. Work that preempts then waits for both steps. Where calls keep coming, each of them would wait for a whole
step more, which on a CPU takes from some milliseconds to seconds, and there is little to win: the host shares its
processors with the steps. So for a while after each preemption, the host of a CPU waits for a step before it
dispatches the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GIVING_WAY_SECONDS = 1.0
"""How long after a preemption no step is dispatched ahead."""


class Lookahead:
    """Says whether a step may be dispatched before the last one is complete. For one thread.

    gives_way: whether work that was preempted waits for its steps; otherwise it always runs ahead.
    """

    def __init__(self, *, gives_way: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._gives_way = gives_way
        self._clock = clock
        self._depth = 0  # how much work is under way: one, and one more for each that preempts another
        self._preempted_at = float("-inf")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Take notice that work begins and ends. It preempts other work if that has not ended."""
        if self._depth:
            self._preempted_at = self._clock()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def allowed(self) -> bool:
        """Return whether the work that is under way may run ahead. Work that preempts other work is short, and may."""
        return not self._gives_way or self._depth > 1 or self._clock() - self._preempted_at >= GIVING_WAY_SECONDS
