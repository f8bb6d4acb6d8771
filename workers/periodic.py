"""Tasks that a process repeats in threads of their own, beside its main work."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import structlog

from jobs.store.database import StorageUnavailable

log = structlog.stdlib.get_logger("worker")


class PeriodicTask:
    """Calls ``action`` every so many seconds in a thread of its own, until closed. An error of one call is logged.

    jitter: the share of the interval by which it varies, so that processes started together don't stay in step.
    """

    def __init__(self, name: str, seconds: float, action: Callable[[], None], *, jitter: float = 0.0) -> None:
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
        while not self._closed.wait(self._seconds * random.uniform(1 - self._jitter, 1 + self._jitter)):
            try:
                self._action()
            except StorageUnavailable:
                pass  # the store logs an outage once
            except Exception:
                log.exception("a chore failed", during=self._name)
