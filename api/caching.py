"""Looking something up for many requests, beside them: see :class:`Cached`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    value: T
    at: float


class Cached(Generic[T]):
    """What ``look`` found by key, remembered for so many seconds. To be used within one event loop.

    From half that age on it is looked up again beside the requests, so that who asks often never waits. However many
    ask for one key at once, it is looked up once. What is not there (None) is not remembered.
    """

    def __init__(
        self, look: Callable[[str], Awaitable[T | None]], seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._seconds = seconds
        self._clock = clock
        self._entries: dict[str, _Entry[T]] = {}
        self._looking: dict[str, asyncio.Task[T | None]] = {}

    async def get(self, key: str) -> T | None:
        """What is so, or was so at most the given seconds ago. Raises what ``look`` raises."""
        entry = self._entries.get(key)
        age = float("inf") if entry is None else self._clock() - entry.at
        if entry is not None and age < self._seconds / 2:
            return entry.value
        looking = self._looking.get(key) or self._start(key)
        if entry is not None and age < self._seconds:
            return entry.value
        # Others may wait for it, too: who goes away does not end it.
        return await asyncio.shield(looking)

    def last(self, key: str) -> T | None:
        """What was found last, however long ago."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def _start(self, key: str) -> asyncio.Task[T | None]:
        task = asyncio.create_task(self._find(key))
        self._looking[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))
        return task

    async def _find(self, key: str) -> T | None:
        asked_at = self._clock()
        value = await self._look(key)
        if value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = _Entry(value, asked_at)
        return value

    def _ended(self, key: str, task: asyncio.Task[T | None]) -> None:
        del self._looking[key]
        if not task.cancelled():
            task.exception()  # whoever waited has it, and perhaps nobody did
