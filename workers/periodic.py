"""Tasks that a process repeats in threads of their own, beside its main work."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import structlog

from jobs.queue.sweep import AGAIN_SECONDS
from jobs.store.database import StorageUnavailable

log = structlog.stdlib.get_logger("worker")


class PeriodicTask:
    """Calls ``action`` every so many seconds in a thread of its own, until closed. An error of one call is logged.

    action: returns whether there is more to do, for which it is called again soon. jitter: the share of the interval by
    which it varies, so that processes started together don't stay in step.
    """

    def __init__(self, name: str, seconds: float, action: Callable[[], bool | None], *, jitter: float = 0.0) -> None:
        self._name = name
        self._seconds = seconds
        self._action = action
        self._jitter = jitter
        self._closed = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """Make no further call. Does not wait for a call that is under way."""
        self._closed.set()

    def _run(self) -> None:
        more: bool | None = False
        while not self._closed.wait(AGAIN_SECONDS if more else self._seconds * self._varied()):
            more = False
            try:
                more = self._action()
            except StorageUnavailable:
                pass  # the store logs an outage once
            except Exception:
                log.exception("a chore failed", during=self._name)

    def _varied(self) -> float:
        return random.uniform(1 - self._jitter, 1 + self._jitter)
