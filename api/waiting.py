"""Wait for jobs to end: all requests of a process share one subscription and one query.

A notice wakes the requests that wait for its job at once. Since notices may be lost, the jobs that requests wait for
are also looked up regularly, all of them in one query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from enum import Enum
from typing import Any

import structlog
from starlette.requests import Request

from api.ended_jobs import EndedJobs
from jobs.store.database import StorageUnavailable
from jobs.store.records import JobStatus

log = structlog.stdlib.get_logger("api.waiting")

Statuses = Callable[[Collection[str]], Awaitable[Mapping[str, JobStatus]]]


class WaitOutcome(Enum):
    """Why a wait has ended."""

    ENDED = "ended"
    TIMED_OUT = "timed out"
    DISCONNECTED = "disconnected"


class Waiters:
    """The requests that wait for jobs, in one event loop. Not safe to use from threads."""

    def __init__(self, ended: EndedJobs) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._ended = ended  # a job may end after it was accepted and before its request begins to wait
        self._stopped = asyncio.Event()

    @property
    def job_ids(self) -> list[str]:
        """The jobs that requests wait for."""
        return list(self._waiting)

    def on_ended(self, job_id: str) -> None:
        """Wake the requests that wait for a job, and let later ones return at once."""
        self._ended.add(job_id)
        for event in self._waiting.get(job_id, ()):
            event.set()

    def stop(self) -> None:
        """End all waits as timed out, because the process shuts down. The jobs continue without it."""
        self._stopped.set()

    async def wait(
        self, job_id: str, seconds: float, client_left: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> WaitOutcome:
        """Wait until a job ends, the time is over, or ``client_left`` returns."""
        if job_id in self._ended:
            return WaitOutcome.ENDED
        ended = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(ended)
        leaving = asyncio.create_task(client_left()) if client_left is not None else None
        watched: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in (ended, self._stopped)]
        watched += [leaving] if leaving is not None else []
        try:
            await asyncio.wait(watched, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if ended.is_set():
                return WaitOutcome.ENDED
            return WaitOutcome.DISCONNECTED if leaving is not None and leaving.done() else WaitOutcome.TIMED_OUT
        finally:
            for task in watched:
                task.cancel()
            self._waiting[job_id].discard(ended)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    async def poll(self, statuses: Statuses, every_seconds: float) -> None:
        """Look up the jobs that requests wait for, again and again, until cancelled."""
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
                # A job that is missing was deleted, which ends the wait too.
                if job_id not in found or found[job_id].ended:
                    self.on_ended(job_id)


async def client_left(request: Request) -> None:
    """Return when a request's client has closed its connection. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
