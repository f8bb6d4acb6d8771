"""Runs Python's garbage collector between batches instead of between the steps of a batch.

Between two steps the device waits for Python. A collection stops all threads while it walks the live objects, of which
a process that has compiled a model's programs has millions. LinkedIn measured pauses of 100 to 300 ms in their ranking
on SGLang; a step may take only a few milliseconds. So the objects from start-up are frozen, which hides them from the
collector, and the others are collected while no step waits: young ones after each batch, all of them once in a while.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

IDLE_SECONDS = 10.0  # between two full collections of an idle worker
BUSY_SECONDS = 60.0  # between two full collections of a worker that is never idle

_YOUNG, _ALL = 1, 2  # the generations that a collection covers


def freeze() -> None:
    """Exempt every object that is alive now from all later collections."""
    gc.collect()
    gc.freeze()


class GarbageCollector:
    """Controls the garbage collector of a worker's process, which all of its threads share."""

    def __init__(self) -> None:
        self._last_full = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Collect nothing inside this block, and collect at its end. Inside another such block this does nothing."""
        if not gc.isenabled():
            yield
            return
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            self._collect(BUSY_SECONDS)

    def collect_idle(self) -> None:
        """Collect now, because the worker has nothing to do."""
        self._collect(IDLE_SECONDS)

    def _collect(self, full_seconds: float) -> None:
        """Collect everything if the last full collection was ``full_seconds`` ago, else young objects only."""
        if time.monotonic() - self._last_full < full_seconds:
            gc.collect(_YOUNG)
            return
        gc.collect(_ALL)
        self._last_full = time.monotonic()
