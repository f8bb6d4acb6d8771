"""Parts of results that several streams want at the same time: each part is read and encoded once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

MAX_PARTS = 32
"""How many parts are kept for streams that come to them a little later."""

Part = TypeVar("Part")


class SharedParts(Generic[Part]):
    """The parts that were read last, in one event loop."""

    def __init__(self) -> None:
        self._parts: OrderedDict[Hashable, asyncio.Task[Part]] = OrderedDict()

    async def get(self, key: Hashable, read: Callable[[], Awaitable[Part]]) -> Part:
        """Return a part, and read it unless it was read lately or is being read. Raises what ``read`` does."""
        task = self._parts.get(key)
        if task is None:
            task = self._parts[key] = asyncio.create_task(_run(read))
            if len(self._parts) > MAX_PARTS:
                self._parts.popitem(last=False)
        try:
            # Its other readers still want it when this one's client goes.
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and self._parts.get(key) is task:
                del self._parts[key]
            raise


async def _run(read: Callable[[], Awaitable[Part]]) -> Part:
    return await read()
