"""Chores of a worker that go on beside the scoring."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import structlog

from jobs.store.database import StorageUnavailable

log = structlog.stdlib.get_logger("worker")


class Repeating:
    """Does something every so many seconds, in a thread of its own, until closed. What fails is tried again.

    jitter: the share of the interval by which it varies, so that processes that started together fall out of step.
    """

    def __init__(self, name: str, seconds: float, action: Callable[[], None], *, jitter: float = 0.0) -> None:
        self._name = name
        self._seconds = seconds
        self._action = action
        self._jitter = jitter
        self._closed = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """No more of it. Does not wait for what is being done."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds * random.uniform(1 - self._jitter, 1 + self._jitter)):
            try:
                self._action()
            except StorageUnavailable as error:
                log.warning("the database is away", during=self._name, error=str(error))
            except Exception:
                log.exception("a chore failed", during=self._name)
