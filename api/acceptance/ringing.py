"""Ring the bell in a thread of its own, so that no request waits for it, and merge concurrent rings into one.

A bell can take a second while Redis is unavailable. The job is committed by then, so its 202 need not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import structlog

from bell.interfaces import Bell, tell

log = structlog.stdlib.get_logger("api")

PAUSE_SECONDS = 0.005
"""Pause between two rings. A ring costs a worker 0.3 ms, and under load each claim finds many jobs."""

LAST_RINGS_SECONDS = 3.0
"""How long a shutdown waits for the last rings. Without them workers find the jobs when they next look for work."""


class Ringer:
    """A context manager whose thread rings and announces, one call of the bell at a time. Safe to use from threads."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._models: set[str] = set()
        self._ended: list[str] = []
        self._asked = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ringing", daemon=True)

    def __enter__(self) -> Ringer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Return when all rings and announcements that were asked for are done, or take too long."""
        with self._asked:
            self._closing.set()
            self._asked.notify()
        self._thread.join(LAST_RINGS_SECONDS)
        if self._thread.is_alive():
            log.warning("the last rings take too long and are given up")

    def ring(self, model: str) -> None:
        """Tell the workers of ``model`` that work waits: now, or after the pause if the bell has just been rung."""
        with self._asked:
            self._models.add(model)
            self._asked.notify()

    def announce(self, job_ids: Iterable[str]) -> None:
        """Tell all API processes that these jobs have ended."""
        with self._asked:
            self._ended.extend(job_ids)
            self._asked.notify()

    def _run(self) -> None:
        while True:
            with self._asked:
                self._asked.wait_for(lambda: self._models or self._ended or self._closing.is_set())
                models, self._models = self._models, set()
                ended, self._ended = self._ended, []
            if not models and not ended:
                return
            try:
                tell(self._bell, models, ended)
            except Exception:  # a bell should never raise, but without this thread all rings would be lost
                log.exception("the bell failed")
            self._closing.wait(PAUSE_SECONDS)
