"""An asynchronous client for a blocking program: its event loop has a thread of its own.

Threads that each block on a request could not be stopped before their answers come. Tasks can.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from scoreline.client.asynchronous import AsyncClient

T = TypeVar("T")


class Background:
    """Runs coroutines of an asynchronous client. What still runs at the end of the ``with`` is cancelled."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def __enter__(self) -> Background:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scoreline", daemon=True)
        self._thread.start()
        return self

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a task."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def __exit__(self, *_: object) -> None:
        self.start(self._end()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()
