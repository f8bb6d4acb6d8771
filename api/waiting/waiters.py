"""Wait for jobs to end: all requests of a process share one subscription and one query.

A notice wakes the requests that wait for its job at once. Since notices may be lost, the jobs that requests wait for
are also looked up regularly, all of them in one query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import Enum
from typing import NamedTuple

from api.waiting.departure import Departure
from api.waiting.ended_jobs import EndedJobs
from jobs.store.database import StorageUnavailable
from jobs.store.records import JobStatus

MAX_EARLY_RESULTS = 512
"""How many results of jobs that nobody waits for are kept. With several API processes, most are for the others."""

Statuses = Callable[[Collection[str]], Awaitable[Mapping[str, JobStatus]]]


class WaitOutcome(Enum):
    """Why a wait has ended."""

    ENDED = "ended"
    TIMED_OUT = "timed out"
    DISCONNECTED = "disconnected"
    STOPPED = "stopped"  # the process shuts down


class Waited(NamedTuple):
    """The end of a wait."""

    outcome: WaitOutcome
    result: str | None = None  # what the notice said of the job besides; anybody may have sent it


class Waiters:
    """The requests that wait for jobs, in one event loop. Not safe to use from threads."""

    def __init__(self, ended: EndedJobs, also_tell: Callable[[str], None] = lambda job_id: None) -> None:
        """also_tell: called with the id of each job that is said to have ended."""
        self._waiting: dict[str, dict[asyncio.Future[Waited], bool]] = {}  # by job id; whether each needs the end
        self._ended = ended  # a job may end after it was accepted and before its request begins to wait
        self._early: dict[str, str] = {}  # by job id: results of such jobs, the latest one last
        self._is_stopping = False  # whether only those wait who need the end of their job
        self._is_stopped = False
        self._also_tell = also_tell

    @property
    def job_ids(self) -> list[str]:
        """The jobs that requests wait for."""
        return list(self._waiting)

    def on_ended(self, job_id: str, result: str | None = None) -> None:
        """Wake the requests that wait for a job, and let later ones return at once.

        The result goes to those who wait now. If nobody does, it is kept for a moment for a request that is about to.
        """
        self._ended.add(job_id)
        self._also_tell(job_id)
        ends = self._waiting.get(job_id, {})
        for end in ends:
            _end(end, Waited(WaitOutcome.ENDED, result))
        if not ends and result is not None:
            self._early[job_id] = result
            if len(self._early) > MAX_EARLY_RESULTS:
                del self._early[next(iter(self._early))]

    def keep_waiting_for(self, job_id: str) -> None:
        """Let later requests wait for a job that has turned out not to have ended, whatever a notice said."""
        self._ended.remove(job_id)
        self._early.pop(job_id, None)

    def stop(self, seconds: float) -> None:
        """End all waits, because the process shuts down: those that need the end of their job after some seconds.

        All others end at once: who asks how a job stands can be told now, and can ask another process again.
        """
        self._is_stopping = True
        for ends in self._waiting.values():
            for end, needs_end in ends.items():
                if not needs_end:
                    _end(end, Waited(WaitOutcome.STOPPED))
        asyncio.get_running_loop().call_later(seconds, self._stop_all)

    def _stop_all(self) -> None:
        self._is_stopped = True
        for ends in self._waiting.values():
            for end in ends:
                _end(end, Waited(WaitOutcome.STOPPED))

    async def wait(
        self, job_id: str, seconds: float, departure: Departure | None = None, *, needs_end: bool = False
    ) -> Waited:
        """Wait until a job ends, the time is over, the client departs, or the process shuts down.

        needs_end: whether the request can't be answered before the job has ended.
        """
        if job_id in self._ended:
            return Waited(WaitOutcome.ENDED, self._early.pop(job_id, None))
        if self._is_stopped or (self._is_stopping and not needs_end):
            return Waited(WaitOutcome.STOPPED)
        loop = asyncio.get_running_loop()
        end: asyncio.Future[Waited] = loop.create_future()
        ends = self._waiting.setdefault(job_id, {})
        ends[end] = needs_end
        timer = loop.call_later(seconds, _end, end, Waited(WaitOutcome.TIMED_OUT))
        if departure is not None:
            departure.watch(lambda: _end(end, Waited(WaitOutcome.DISCONNECTED)))
        try:
            return await end
        finally:
            timer.cancel()
            if departure is not None:
                departure.unwatch()
            del ends[end]
            if not ends:
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
            except StorageUnavailable:
                continue
            for job_id in job_ids:
                # A job that is missing was deleted, which ends the wait too.
                if job_id not in found or found[job_id].ended:
                    self.on_ended(job_id)


def _end(end: asyncio.Future[Waited], waited: Waited) -> None:
    if not end.done():
        end.set_result(waited)
