"""Garbage collection, kept out of the steps of a batch.

Between two steps the device waits for Python, and a collection stops all of its threads for as long as it takes to walk
what is alive: in a process that has compiled a model's programs these are millions of objects. LinkedIn saw pauses of
100 to 300 ms in their ranking work on SGLang; a step may take a few. So what start-up left is put out of the
collector's sight, and the rest is collected where nobody waits: between batches what is young, all of it in quiet.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

IDLE_SECONDS = 10.0
BUSY_SECONDS = 60.0
"""All is collected when so long has passed since the last time: of an idle worker, and of one that never is."""

_YOUNG, _ALL = 1, 2


def settle() -> None:
    """Take what is alive by now for what stays alive: it is not looked at again."""
    gc.collect()
    gc.freeze()


class Garbage:
    """Of one worker: the collector is the process's, so its other threads go without for as long as a batch takes."""

    def __init__(self) -> None:
        self._all_at = time.monotonic()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Nothing is collected inside this block; at its end it is. Within another one, it is left to that."""
        if not gc.isenabled():
            yield
            return
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            self._collect(BUSY_SECONDS)

    def idle(self) -> None:
        """Say that nobody waits."""
        self._collect(IDLE_SECONDS)

    def _collect(self, seconds: float) -> None:
        if time.monotonic() - self._all_at < seconds:
            gc.collect(_YOUNG)
            return
        gc.collect(_ALL)
        self._all_at = time.monotonic()
