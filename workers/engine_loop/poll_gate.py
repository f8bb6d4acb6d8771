"""When a busy worker looks for interactive work, between two steps of its batch."""

from __future__ import annotations

import threading
import time


class Looks:
    """Of one batch. A look is a query, and a step of a small model takes no longer than one. So not every step looks,
    but the first, the next one whenever the bell has rung, and one every ``seconds`` in case it did not.

    woken: set by the bell; cleared by a look. Nobody else misses it: after its batch, a worker looks for work anyway.
    """

    def __init__(self, woken: threading.Event, seconds: float) -> None:
        self._woken = woken
        self._seconds = seconds
        self._next = 0.0

    def due(self) -> bool:
        """Whether this step looks."""
        now = time.monotonic()
        if now < self._next and not self._woken.is_set():
            return False
        self._woken.clear()
        self._next = now + self._seconds
        return True

    def again(self) -> None:
        """Have the next step look, too."""
        self._next = 0.0
