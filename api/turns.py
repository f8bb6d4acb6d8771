"""Let tenants take turns, so that the work of one tenant does not keep that of the others waiting."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """A number of places, which the tenants that wait get in turn, however many of their requests wait.

    For one event loop.
    """

    def __init__(self, places: int = 1, places_each: int = 1) -> None:
        """places_each: the most places that one tenant may have at a time. The others are free for other tenants."""
        self._free = places
        self._places_each = places_each
        self._taken: Counter[str] = Counter()  # by tenant
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by tenant; the first tenant is the next

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place, and keep it until the end of the block."""
        if self._may_take(tenant):
            self._take(tenant)
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._give_back(tenant)

    async def _wait(self, tenant: str) -> None:
        """Return when somebody has taken a place for this request."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._give_back(tenant)
            raise

    def _may_take(self, tenant: str) -> bool:
        return self._free > 0 and self._taken[tenant] < self._places_each

    def _take(self, tenant: str) -> None:
        self._free -= 1
        self._taken[tenant] += 1

    def _give_back(self, tenant: str) -> None:
        self._free += 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]
        for waiting in list(self._waiting):
            self._pass_on(waiting)

    def _pass_on(self, tenant: str) -> None:
        """Take a place for the first request of the tenant that still waits, if there is one that it may take."""
        while self._may_take(tenant) and (queue := self._waiting.pop(tenant, None)) is not None:
            mine = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            if not mine.done():
                self._take(tenant)
                mine.set_result(None)
                return
