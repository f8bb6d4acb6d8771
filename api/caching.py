"""Values that many requests need: two caches, one for threads and one by key for coroutines, and a call that is shared.

Both caches keep a value for a limited time and let one caller at a time look it up. They share no code for the waiting:
a thread waits for a lock, a coroutine for a task. A shared call keeps what it is told to keep for a moment.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_TIME_SHARE = 0.02
"""Share of the time that may be spent on looking up a value whose lifetime can be extended."""

AHEAD = 0.75
"""The part of its lifetime after which a value in regular use is looked up again, so that nobody waits for it."""

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


class CachedLookup(Generic[T]):
    """The results of an asynchronous look-up by key, kept for ``seconds``. For use within one event loop.

    If a value is asked for when it is older than half of that, it is refreshed in the background. So callers of a key
    in regular use never wait. Concurrent callers of one key share one look-up. A missing value (None) is not kept.
    """

    def __init__(
        self, look_up: Callable[[str], Awaitable[T | None]], seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up = look_up
        self._seconds = seconds
        self._clock = clock
        self._entries: dict[str, _Entry[T]] = {}
        self._tasks: dict[str, asyncio.Task[T | None]] = {}

    async def get(self, key: str) -> T | None:
        """Return the value of a key, at most ``seconds`` old. Raises what the look-up raises."""
        entry = self._entries.get(key)
        age = float("inf") if entry is None else self._clock() - entry.found_at
        if entry is not None and age < entry.seconds / 2:
            return entry.value
        task = self._tasks.get(key) or self._start(key)
        if entry is not None and age < entry.seconds:
            return entry.value
        # Other callers may wait for the same task, so cancelling one caller must not cancel it.
        return await asyncio.shield(task)

    def last(self, key: str) -> T | None:
        """Return the last value that was found, whatever its age."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def _start(self, key: str) -> asyncio.Task[T | None]:
        task = asyncio.create_task(self._refresh(key))
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._on_done(key, done))
        return task

    async def _refresh(self, key: str) -> T | None:
        started = self._clock()
        value = await self._look_up(key)
        if value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = _Entry(value, started, self._seconds)
        return value

    def _on_done(self, key: str, task: asyncio.Task[T | None]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: a refresh in the background may have no caller that awaits it


class SharedCall(Generic[T]):
    """An asynchronous function that is called once for all who ask at the same time. For use within one event loop.

    One call is under way at a time. Who asks meanwhile gets the result of the next one, so that no result is older than
    the question. With ``seconds``, what a call returned or raised is the answer to all questions for so long.
    """

    def __init__(
        self, function: Callable[[], Awaitable[T]], seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._function = function
        self._seconds = seconds
        self._clock = clock
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None  # the call that has not begun yet
        self._last: asyncio.Task[T] | None = None  # the call that has ended, while it is the answer to all
        self._last_until = 0.0

    async def result(self) -> T:
        """Return the result of a call that begins after this question, or has just ended. Raises what it raised."""
        if (last := self._recent()) is not None:
            return last.result()
        if self._next is None:
            self._next = asyncio.create_task(self._call())
        # Other callers may wait for the same call, so cancelling one caller must not cancel it.
        return await asyncio.shield(self._next)

    async def _call(self) -> T:
        async with self._turn:
            self._next = None
            if (last := self._recent()) is not None:
                return last.result()
            try:
                return await self._function()
            finally:
                self._last, self._last_until = asyncio.current_task(), self._clock() + self._seconds

    def _recent(self) -> asyncio.Task[T] | None:
        """Return the last call if what it returned is young enough."""
        if self._last is not None and self._clock() >= self._last_until:
            self._last = None
        return self._last
