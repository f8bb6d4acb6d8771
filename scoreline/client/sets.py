"""Submit jobs, and wait for them, with one request for all short ones that come at the same moment.

There is no timer: a lone job is sent at once. Those that come while requests are under way form the next set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence, Sized
from typing import Any, Generic, Protocol, TypeVar

from scoreline.client.decisions import Questions, State
from scoreline.client.errors import ScorelineError
from scoreline.client.exchange.flow import Flow, Request
from scoreline.client.exchange.sending import Service, send
from scoreline.client.job_objects import Job
from scoreline.client.operations import sets as set_operations
from scoreline.client.operations.decisions import submit_decision
from scoreline.client.operations.jobs import JobOrId, ended_without_success
from scoreline.client.operations.submitting import submit
from scoreline.client.operations.waiting import timed_out, wait

MAX_ITEMS = 960
"""The most items of a set, so that the results of all its jobs fit into one answer."""

SHORT_ITEMS = MAX_ITEMS // 4
SHORT_BYTES = 2**14
"""A job with more items, or a larger body, is sent alone."""

SUBMITTED_AT_ONCE = 2
"""Sets that are being submitted at the same time."""

ALONE_AT_ONCE = 32
"""Jobs that are sent, or waited for, alone at the same time."""

T = TypeVar("T")
Outcome = Job | ScorelineError | None


class Driver(Protocol):
    """An asynchronous client, as far as sets need it. Its own module needs this one."""

    @property
    def service(self) -> Service:
        """Where the service is."""

    async def carry_out(self, flow: Flow[T]) -> T:
        """Carry out the commands of a flow and return its value."""
        ...


class _Gathering(Generic[T]):
    """Has what is asked for at the same moment done together."""

    def __init__(self, work: Callable[[list[T]], Awaitable[Sequence[Outcome]]], at_once: int | None = None) -> None:
        """at_once: how often the work is done at the same time; None: for all who ask."""
        self._work = work
        self._at_once = at_once
        self._asked: list[tuple[T, int, asyncio.Future[Outcome]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # Those that will look once more for what is asked. A task that will not is in the set for a moment longer.
        self._looking = 0

    async def ask(self, what: T, items: int) -> Outcome:
        """Return what came of one job, which has so many items."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._asked.append((what, items, outcome))
        if self._at_once is None or self._looking < self._at_once:
            self._looking += 1
            # It begins after all that are about to ask now.
            task = asyncio.create_task(self._do())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await outcome

    async def _do(self) -> None:
        while taken := self._take():
            try:
                outcomes = await self._work([what for what, _ in taken])
            except Exception as error:
                for _, future in taken:
                    if not future.done():
                        future.set_exception(error)
            except BaseException:
                for _, future in taken:
                    future.cancel()
                raise
            else:
                for (_, future), outcome in zip(taken, outcomes, strict=True):
                    if not future.done():
                        future.set_result(outcome)
        self._looking -= 1

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self) -> list[tuple[T, asyncio.Future[Outcome]]]:
        taken: list[tuple[T, asyncio.Future[Outcome]]] = []
        room, count = MAX_ITEMS, 0
        for what, items, future in self._asked:
            if len(taken) == set_operations.MAX_JOBS or (taken and items > room):
                break
            count += 1
            if not future.done():  # who has asked may have been cancelled
                room -= items
                taken.append((what, future))
        del self._asked[:count]
        return taken


class JobSets:
    """Submits jobs and waits for them. For use within one event loop."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._submitted = _Gathering(self._submit, SUBMITTED_AT_ONCE)
        self._awaited = _Gathering(self._wait)
        self._alone = asyncio.Semaphore(ALONE_AT_ONCE)

    async def submit(self, query: Any, items: Any, **options: Any) -> Job:
        """Do what the client's ``submit`` does."""
        count = len(items) + len(options.get("baseline") or ()) if isinstance(items, Sized) else SHORT_ITEMS
        return await self._sent(submit(self.driver.service, query, items, **options), count)

    async def submit_decision(self, state: State, questions: Questions, **options: Any) -> Job:
        """Do what the client's ``submit_decision`` does."""
        return await self._sent(submit_decision(self.driver.service, state, questions, **options), len(questions))

    async def _sent(self, submitting: Flow[Job], count: int) -> Job:
        """Submit a job with so many items."""
        request = set_operations.request_of(submitting)
        body = request.body.content() if request.body is not None else b""
        if count <= SHORT_ITEMS and isinstance(body, bytes) and len(body) <= SHORT_BYTES:
            outcome = await self._submitted.ask(request, count)
            if outcome is not None:
                return _checked(outcome)
        async with self._alone:
            return await self.driver.carry_out(send(self.driver.service, request, patient=True))

    async def wait(self, job: JobOrId, items: int, timeout: float | None = None) -> Job:
        """Do what the client's ``wait`` does for a job with so many items."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            async with asyncio.timeout(timeout):
                while items <= SHORT_ITEMS:
                    outcome = await self._awaited.ask(job, items)
                    if outcome is None:
                        break
                    found = _checked(outcome)
                    if found.ended:
                        if found.status != "succeeded":
                            raise ended_without_success(found)
                        return found
        except TimeoutError:
            if timeout is None:
                raise
            job_id = job if isinstance(job, str) else job.id
            raise timed_out(f"{job_id} has not ended after {timeout:g} s", job_id) from None
        async with self._alone:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return await self.driver.carry_out(wait(self.driver.service, job, left))

    async def close(self) -> None:
        """Give up the requests that are under way."""
        await self._submitted.close()
        await self._awaited.close()

    async def _submit(self, requests: list[Request[Job]]) -> Sequence[Outcome]:
        if len(requests) == 1:
            return [await self.driver.carry_out(send(self.driver.service, requests[0], patient=True))]
        return await self.driver.carry_out(set_operations.submit_set(self.driver.service, requests))

    async def _wait(self, jobs: list[JobOrId]) -> Sequence[Outcome]:
        if len(jobs) == 1:
            return [None]
        return await self.driver.carry_out(set_operations.wait_for_set(self.driver.service, jobs))


def _checked(outcome: Job | ScorelineError) -> Job:
    if isinstance(outcome, ScorelineError):
        raise outcome
    return outcome
