"""Read the results of jobs for many requests at once: those that ask at the same time share one query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from jobs.store.records import JobResult
from jobs.tenancy.ownership import job_not_found

MAX_VALUES = 2**20
"""Scores that are read with one query, unless one job alone has more: this bounds the memory of a query."""

Results = Callable[[Collection[str]], Awaitable[Mapping[str, JobResult]]]


class SharedReads:
    """The requests that wait for results to be read, in one event loop. Not safe to use from threads.

    One query is under way at a time. Who asks meanwhile is in the next one.
    """

    def __init__(self, results: Results) -> None:
        self._results = results
        self._asked: dict[str, tuple[int, list[asyncio.Future[JobResult | None]]]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def result(self, tenant: str, job_id: str, values: int) -> JobResult:
        """Return a job, and its scores if it has succeeded. values: how many scores it has.

        Raises RequestError JOB_NOT_FOUND, StorageUnavailable.
        """
        answer: asyncio.Future[JobResult | None] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(job_id, (values, []))[1].append(answer)
        if self._reading is None:
            # The task begins after all requests that the same notice has woken, so they are in its first query.
            self._reading = asyncio.create_task(self._read())
        found = await answer
        if found is None or found[0].tenant != tenant:
            raise job_not_found()
        return found

    async def _read(self) -> None:
        try:
            while asked := self._take():
                try:
                    found = await self._results(list(asked))
                except Exception as error:
                    for answer in _open(asked):
                        answer.set_exception(error)
                    continue
                for job_id, answers in asked.items():
                    for answer in _open({job_id: answers}):
                        answer.set_result(found.get(job_id))
        finally:
            self._reading = None

    def _take(self) -> dict[str, list[asyncio.Future[JobResult | None]]]:
        """Return the requests for the next query, those that have asked first."""
        taken: dict[str, list[asyncio.Future[JobResult | None]]] = {}
        room = MAX_VALUES
        for job_id, (values, answers) in list(self._asked.items()):
            if taken and values > room:
                break
            room -= values
            taken[job_id] = answers
            del self._asked[job_id]
        return taken


def _open(asked: Mapping[str, list[asyncio.Future[JobResult | None]]]) -> list[asyncio.Future[JobResult | None]]:
    """Return the futures of the requests that have not been cancelled."""
    return [answer for answers in asked.values() for answer in answers if not answer.done()]
