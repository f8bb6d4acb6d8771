"""Limits how often a busy worker queries for interactive work between the steps of its batch."""

from __future__ import annotations

import threading
import time


class PollGate:
    """Decides for each step of one batch whether the worker polls for interactive work after it.

    A poll is a query, which takes as long as a step of a small model. So a poll follows the first step (unless
    ``after_first`` is false), the next step after the bell has rung, and one step every ``seconds`` because rings can
    be lost. A poll clears ``woken``. The worker misses no ring because of that: after its batch, it looks for work in
    any case.
    """

    def __init__(self, woken: threading.Event, seconds: float, *, after_first: bool = True) -> None:
        self._woken = woken  # set by the bell
        self._seconds = seconds
        self._next = 0.0 if after_first else time.monotonic() + seconds  # on the clock of time.monotonic

    def due(self) -> bool:
        """Return whether to poll after this step. If so, the next interval begins now."""
        now = time.monotonic()
        if now < self._next and not self._woken.is_set():
            return False
        self._woken.clear()
        self._next = now + self._seconds
        return True

    def poll_again(self) -> None:
        """Have the next step followed by a poll, too."""
        self._next = 0.0
