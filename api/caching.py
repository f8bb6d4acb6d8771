"""Values that many requests need: two caches, one for threads and one by key for coroutines.

Both keep a value for a limited time and let one caller at a time look it up. They share no code for the waiting: a
thread waits for a lock, a coroutine for a task.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_TIME_SHARE = 0.02
"""Share of the time that may be spent on looking up a value whose lifetime can be extended."""

AHEAD = 0.75
"""The part of its lifetime after which a value in regular use is looked up again, so that nobody waits for it."""

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    value: T
    found_at: float  # seconds on the cache's clock
    seconds: float  # how long the value may be used


class ThrottledValue(Generic[T]):
    """A value that is looked up when it is needed and older than ``seconds``. Safe to use from threads.

    If a look-up was slow, its result lives longer, so that look-ups take at most :data:`MAX_TIME_SHARE` of the time.
    But no result lives longer than ``max_seconds`` (default: ``seconds``). While one thread looks the value up, the
    others get the old value, if this is younger than twice its lifetime.
    """

    def __init__(
        self,
        look_up: Callable[[], T],
        seconds: float,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up = look_up
        self._seconds = seconds
        self._max_seconds = seconds if max_seconds is None else max_seconds
        self._clock = clock
        self._refreshing = threading.Lock()
        self._entry: _Entry[T] | None = None

    def get(self) -> T:
        """Return the value, looked up now or a short time ago. Raises what the look-up raises."""
        entry = self._entry
        age = 0.0 if entry is None else self._clock() - entry.found_at
        if entry is not None and age < entry.seconds:
            return entry.value
        # A value that is too old is not returned, even if another thread is looking up a new one.
        may_use_old = entry is not None and age < 2 * entry.seconds
        if not self._refreshing.acquire(blocking=not may_use_old):
            assert entry is not None
            return entry.value
        try:
            newer = self._entry
            return newer.value if newer is not None and newer is not entry else self.refresh()
        finally:
            self._refreshing.release()

    def fresh(self) -> T | None:
        """Return the value if it is within its lifetime. Looks nothing up."""
        entry = self._entry
        return entry.value if entry is not None and self._clock() - entry.found_at < entry.seconds else None

    def is_due(self) -> bool:
        """Return whether the value should be looked up before it is needed. Looks nothing up."""
        entry = self._entry
        return entry is None or self._clock() - entry.found_at >= AHEAD * entry.seconds

    def refresh(self) -> T:
        """Look the value up now and keep it. Raises what the look-up raises."""
        started = self._clock()
        value = self._look_up()
        ended = self._clock()
        seconds = min(self._max_seconds, max(self._seconds, (ended - started) / MAX_TIME_SHARE))
        self._entry = _Entry(value, ended, seconds)
        return value


class CachedLookup(Generic[Key, T]):
    """The results of an asynchronous look-up by key, kept for ``seconds``. For use within one event loop.

    If a value is asked for when it is older than half of that, it is refreshed in the background. So callers of a key
    in regular use never wait. Concurrent callers of one key share one look-up. A missing value (None) is not kept, and
    of more than ``most`` values the oldest ones are forgotten.
    """

    def __init__(
        self,
        look_up: Callable[[Key], Awaitable[T]],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        most: float = math.inf,
    ) -> None:
        self._look_up = look_up
        self._seconds = seconds
        self._clock = clock
        self._most = most
        self._entries: dict[Key, _Entry[T]] = {}
        self._tasks: dict[Key, asyncio.Task[T]] = {}

    async def get(self, key: Key) -> T:
        """Return the value of a key, at most ``seconds`` old. Raises what the look-up raises."""
        entry = self._entries.get(key)
        age = math.inf if entry is None else self._clock() - entry.found_at
        if entry is not None and age < entry.seconds / 2:
            return entry.value
        task = self._tasks.get(key) or self._start(key)
        if entry is not None and age < entry.seconds:
            return entry.value
        # Other callers may wait for the same task, so cancelling one caller must not cancel it.
        return await asyncio.shield(task)

    def last(self, key: Key) -> T | None:
        """Return the last value that was found, whatever its age."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def _start(self, key: Key) -> asyncio.Task[T]:
        task = asyncio.create_task(self._refresh(key))
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._on_done(key, done))
        return task

    async def _refresh(self, key: Key) -> T:
        started = self._clock()
        value = await self._look_up(key)
        if value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = _Entry(value, started, self._seconds)
            if len(self._entries) > self._most:
                del self._entries[next(iter(self._entries))]
        return value

    def _on_done(self, key: Key, task: asyncio.Task[T]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: a refresh in the background may have no caller that awaits it
