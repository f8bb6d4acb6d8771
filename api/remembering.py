"""Looking something up for many requests at once: what was found serves them all for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

SHARE = 0.02
"""Of the time, what looking may take, where it may be put off."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    value: T
    at: float
    good_for: float


class Remembered(Generic[T]):
    """What ``look`` returned, looked up again when it is needed and is older than ``seconds``; where looking is slow,
    older than up to ``most_seconds``.

    Safe to use from threads: one of them looks; the others have what was found before, unless that is too old.
    """

    def __init__(
        self,
        look: Callable[[], T],
        seconds: float,
        most_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._seconds = seconds
        self._most_seconds = most_seconds
        self._clock = clock
        self._looking = threading.Lock()
        self._found: _Found[T] | None = None

    def get(self) -> T:
        """What is so, or was so shortly before. Raises what ``look`` raises."""
        found = self._found
        age = 0.0 if found is None else self._clock() - found.at
        if found is not None and age < found.good_for:
            return found.value
        # Nobody is told what was so long ago only because somebody else is about to find out what is so now.
        with_old = found is not None and age < 2 * found.good_for
        if not self._looking.acquire(blocking=not with_old):
            assert found is not None
            return found.value
        try:
            newer = self._found
            if newer is not None and newer is not found:
                return newer.value
            started = self._clock()
            value = self._look()
            ended = self._clock()
            self._found = _Found(value, ended, min(self._most_seconds, max(self._seconds, (ended - started) / SHARE)))
            return value
        finally:
            self._looking.release()
