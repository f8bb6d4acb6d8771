"""Waiting for jobs to end: many requests, one subscription and one query.

A notice wakes a request at once. Notices may be lost, so all waiting requests of a process are also looked up together,
in one query every second or so.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from enum import Enum
from typing import Any

import structlog
from starlette.requests import Request

from jobs.store.database import StorageUnavailable
from jobs.store.records import JobStatus

REMEMBERED_ENDS = 10_000
"""Ended jobs that are remembered: a job may end between its commit and the moment somebody waits for it."""

log = structlog.stdlib.get_logger("api.waiting")

Statuses = Callable[[Collection[str]], Awaitable[Mapping[str, JobStatus]]]


class Outcome(Enum):
    """Why a wait is over."""

    ENDED = "ended"
    TIMED_OUT = "timed out"
    DISCONNECTED = "disconnected"


class Waiters:
    """Who waits for what, in one event loop. Not safe to use from threads."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._stopped = asyncio.Event()

    @property
    def job_ids(self) -> list[str]:
        """The jobs that somebody waits for."""
        return list(self._waiting)

    def on_ended(self, job_id: str) -> None:
        """Wake whoever waits for a job, and whoever is about to."""
        self._ended[job_id] = None
        self._ended.move_to_end(job_id)
        if len(self._ended) > REMEMBERED_ENDS:
            self._ended.popitem(last=False)
        for event in self._waiting.get(job_id, ()):
            event.set()

    def stop(self) -> None:
        """Let every wait time out now: the process is shutting down, and jobs go on without it."""
        self._stopped.set()

    async def wait(
        self, job_id: str, seconds: float, gone: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> Outcome:
        """Wait until a job ends, the time is up, or ``gone`` returns: the client's going away."""
        if job_id in self._ended:
            return Outcome.ENDED
        ended = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(ended)
        leaving = asyncio.create_task(gone()) if gone is not None else None
        watched: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in (ended, self._stopped)]
        watched += [leaving] if leaving is not None else []
        try:
            await asyncio.wait(watched, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if ended.is_set():
                return Outcome.ENDED
            return Outcome.DISCONNECTED if leaving is not None and leaving.done() else Outcome.TIMED_OUT
        finally:
            for task in watched:
                task.cancel()
            self._waiting[job_id].discard(ended)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    async def poll(self, statuses: Statuses, every_seconds: float) -> None:
        """Look up all that is waited for, again and again, until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            job_ids = self.job_ids
            if not job_ids:
                continue
            try:
                found = await statuses(job_ids)
            except StorageUnavailable as error:
                log.warning("waiting jobs could not be looked up", error=str(error))
                continue
            for job_id in job_ids:
                # A job that is not there any more was deleted: whoever waits for it is to learn that now.
                if job_id not in found or found[job_id].ended:
                    self.on_ended(job_id)


async def client_left(request: Request) -> None:
    """Return once a request's client has closed its connection. To be called when its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
