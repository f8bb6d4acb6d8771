"""Ringing the bell in a thread of its own: never waited for, and many rings at once are one.

A bell may take a second when its Redis is away. A job is committed by then, so its 202 does not wait for that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType

import structlog

from bell.interfaces import Bell

log = structlog.stdlib.get_logger("api")

PAUSE_SECONDS = 0.005
"""Between two rings. A ring costs its workers about a millisecond, and under load each claim finds many jobs."""


class Ringer:
    """Rings and announces while it is entered, one call of the bell at a time. To be called from any thread."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return once all that was asked for is done."""
        with self._asked:
            self._closing.set()
            self._asked.notify()
        self._thread.join()

    def ring(self, model: str) -> None:
        """Say that ``model`` has waiting work: at once, or in a moment if the bell has just been rung."""
        with self._asked:
            self._models.add(model)
            self._asked.notify()

    def announce(self, job_ids: Iterable[str]) -> None:
        """Say that these jobs reached an end."""
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
                for model in models:
                    self._bell.ring(model)
                if ended:
                    self._bell.announce(ended)
            except Exception:  # a bell promises not to; without this thread, every ring would be missed
                log.exception("the bell failed")
            self._closing.wait(PAUSE_SECONDS)
