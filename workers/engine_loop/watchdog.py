"""Detects an engine that hangs. A hanging device call can't be interrupted, so its process has to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_SECONDS = 1.0  # between two looks at the clock, at most


class Watchdog:
    """Calls ``on_stuck`` once it is armed and was not fed for ``timeout`` seconds.

    Its thread reads a clock and nothing else, because anything else, such as the database, may hang as well.
    """

    def __init__(self, timeout: float, on_stuck: Callable[[], None]) -> None:
        self._timeout = timeout
        self._on_stuck = on_stuck
        self._last_fed: float | None = None  # None while not armed
        self._armed = 0  # how many blocks of armed() are open
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Arm the watchdog inside this block. Blocks may be nested; the end of one feeds the watchdog."""
        self._armed += 1
        self.feed()
        try:
            yield
        finally:
            self._armed -= 1
            self._last_fed = time.monotonic() if self._armed else None

    def feed(self) -> None:
        """Report progress: the timeout begins anew."""
        self._last_fed = time.monotonic()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(min(CHECK_SECONDS, self._timeout / 4)):
            last = self._last_fed
            if last is not None and time.monotonic() - last > self._timeout:
                self._on_stuck()
                return
