"""Ringing the bell from an event loop: never waited for, and many at once are one.

A bell may take a second when its Redis is away. A job is committed by then, so its 202 does not wait for that.
"""

from __future__ import annotations

import asyncio

from anyio.to_thread import run_sync

from bell.ringing import Bell

PAUSE_SECONDS = 0.005
"""Between two rings. A ring costs its workers about a millisecond, and under load each claim finds many jobs."""


class Ringer:
    """Rings and announces in a thread, in the order of calling, one call of the bell at a time."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._models: set[str] = set()
        self._ended: list[str] = []
        self._something = asyncio.Event()

    def ring(self, model: str) -> None:
        """Say that ``model`` has waiting work."""
        self._models.add(model)
        self._something.set()

    def announce(self, job_ids: list[str]) -> None:
        """Say that these jobs reached an end."""
        self._ended.extend(job_ids)
        self._something.set()

    async def run(self) -> None:
        """Ring until cancelled: at once, and for what is asked for meanwhile and in the pause after it once more."""
        while True:
            await self._something.wait()
            await self.flush()
            await asyncio.sleep(PAUSE_SECONDS)

    async def flush(self) -> None:
        """Ring for what was asked so far."""
        self._something.clear()
        models, self._models = self._models, set()
        ended, self._ended = self._ended, []
        if models or ended:
            await run_sync(self._ring_all, models, ended)

    def _ring_all(self, models: set[str], ended: list[str]) -> None:
        for model in models:
            self._bell.ring(model)
        if ended:
            self._bell.announce(ended)
