"""Follow states that change, such as the progress of jobs, for any number of streams that share one query.

A stream does not get changes pushed to it. It asks for the latest state when its client has read what came before. So a
client that does not read costs no memory, and one that reads slowly skips what is outdated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from api.rounds import Rounds
from api.waiting.departure import Departure
from jobs.store.database import StorageUnavailable


class Final(Protocol):
    """A state that says whether it can still change."""

    @property
    def is_final(self) -> bool:
        """Whether it never changes again."""


State = TypeVar("State", bound=Final)
Read = Callable[[Collection[str]], Awaitable[Mapping[str, State]]]
"""Returns states by key. What is missing does not exist, or no longer."""


class Followed(Generic[State]):
    """What some streams follow. For use on the event loop."""

    def __init__(self) -> None:
        self.state: State | None = None  # None: not read yet, or there is no such thing
        self.version = 0  # 0: not read yet
        self.error: StorageUnavailable | None = None  # of the last look, if there was none before that succeeded
        self.streams = 0
        self.is_stopped = False
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def may_change(self) -> bool:
        """Whether it is to be looked at again."""
        return self.version == 0 or (self.state is not None and not self.state.is_final)

    def update(self, state: State | None) -> None:
        """Enter what was read, and wake the streams if it differs from what was known."""
        self.error = None
        if self.version == 0 or state != self.state:
            self.state = state
            self.version += 1
            self.wake()

    def fail(self, error: StorageUnavailable) -> None:
        """Tell the streams that wait for the first state that it can't be read."""
        if self.version == 0:
            self.error = error
            self.wake()

    def wake(self) -> None:
        for one in self._waiting:
            _end(one)

    async def change(self, seen: int, seconds: float, departure: Departure) -> None:
        """Wait for a version other than ``seen``, for some time at most, or until the client has gone."""
        if self.version != seen or self.is_stopped or departure.has_happened:
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting.add(woken)
        timer = loop.call_later(max(0.0, seconds), _end, woken)
        departure.watch(lambda: _end(woken))
        try:
            await woken
        finally:
            timer.cancel()
            departure.unwatch()
            self._waiting.discard(woken)

    async def first(self, departure: Departure) -> State | None:
        """Return the state once it was read. Raises StorageUnavailable."""
        while self.version == 0 and not (self.is_stopped or departure.has_happened):
            if self.error is not None:
                raise self.error
            await self.change(0, _FIRST_SECONDS, departure)
        return self.state


_FIRST_SECONDS = 60.0  # longer than any look; it only bounds a wait


class Following(Generic[State]):
    """All that streams of this process follow. For use within one event loop."""

    def __init__(self, read: Read[State], every_seconds: float) -> None:
        """every_seconds: how often everything that may change is looked at, in one query."""
        self._read = read
        self._every_seconds = every_seconds
        self._followed: dict[str, Followed[State]] = {}
        self._looks = Rounds[str, None](self._look_at)
        self._is_stopped = False

    @contextmanager
    def follow(self, key: str) -> Iterator[Followed[State]]:
        """Follow a state within the block."""
        followed = self._followed.get(key)
        if followed is None:
            followed = self._followed[key] = Followed()
            followed.is_stopped = self._is_stopped
            self.look_at(key)
        followed.streams += 1
        try:
            yield followed
        finally:
            followed.streams -= 1
            if not followed.streams and self._followed.get(key) is followed:
                del self._followed[key]

    def look_at(self, key: str) -> None:
        """Look at a state soon, because it is new here or somebody says that it has changed."""
        followed = self._followed.get(key)
        if followed is not None and followed.may_change:
            self._looks.ask(key)

    def stop(self) -> None:
        """End all streams, because the process shuts down. Their clients come back and find another process."""
        self._is_stopped = True
        for followed in self._followed.values():
            followed.is_stopped = True
            followed.wake()

    async def keep(self) -> None:
        """Look at all that is followed, regularly, until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            for key in self._followed:
                self.look_at(key)

    async def _look_at(self, keys: Collection[str]) -> Mapping[str, None]:
        looked_at = {key: one for key in keys if (one := self._followed.get(key)) is not None and one.may_change}
        if not looked_at:
            return {}
        try:
            found = await self._read(list(looked_at))
        except StorageUnavailable as error:
            for one in looked_at.values():
                one.fail(error)
            return {}
        for key, one in looked_at.items():
            one.update(found.get(key))
        return {}


def _end(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
