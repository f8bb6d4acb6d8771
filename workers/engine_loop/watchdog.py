"""Watching the engine: a device call that hangs can't be interrupted, only ended with its process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_SECONDS = 1.0


class Progress:
    """Calls ``on_stuck`` once work goes on for ``timeout`` seconds without a :meth:`beat`.

    Its thread touches nothing but a clock: not the database, which may hang itself.
    """

    def __init__(self, timeout: float, on_stuck: Callable[[], None]) -> None:
        self._timeout = timeout
        self._on_stuck = on_stuck
        self._last_beat: float | None = None
        self._expecting = 0
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="progress", daemon=True).start()

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Beats are expected inside this block. It may lie within another one, which goes on after it."""
        self._expecting += 1
        self.beat()
        try:
            yield
        finally:
            self._expecting -= 1
            self._last_beat = time.monotonic() if self._expecting else None

    def beat(self) -> None:
        """Say that the work has got on."""
        self._last_beat = time.monotonic()

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(min(LOOK_SECONDS, self._timeout / 4)):
            last = self._last_beat
            if last is not None and time.monotonic() - last > self._timeout:
                self._on_stuck()
                return
