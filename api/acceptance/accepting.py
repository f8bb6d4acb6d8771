"""Accept submissions in groups: what waits at the same moment is committed by one transaction.

The first submission is committed at once. Those that come meanwhile are committed together afterwards. A group is
bounded, and a large submission is committed by itself in another thread, so no submission waits for more than the group
before its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from starlette.requests import ClientDisconnect

from api.acceptance.ringing import Ringer
from api.metrics import Metrics
from api.threads import Threads
from api.waiting.departure import Departure
from jobs.queue.accept import Outcome, accept, accept_group
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import Accepted, Submission
from telemetry.tracing import current_span

MAX_MEMBERS = 64
MAX_GROUP_BYTES = 2**19
"""The most that one transaction stores, as :func:`_bytes` counts: that takes some milliseconds."""

MAX_MEMBER_BYTES = 2**16
"""A larger submission is committed by itself. This is about 16,000 tokens."""

CHUNK_BYTES = 2**10
"""As how many bytes a chunk counts, beside those of its tokens."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A submission that is to be committed with others."""

    submission: Submission
    bytes: int
    being_committed: bool = False
    outcome: asyncio.Future[Outcome] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, outcome: Outcome) -> None:
        """Tell the request, unless it was cancelled."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def leave_out(self) -> None:
        """End the request, because its client has gone, unless its job is being committed."""
        if not self.being_committed:
            self.end(ClientDisconnect())


class Acceptor:
    """Commits submissions, rings the workers for them and counts them. For use within one event loop."""

    def __init__(self, database: Database, threads: Threads, ringer: Ringer, metrics: Metrics) -> None:
        self._database = database
        self._threads = threads
        self._ringer = ringer
        self._metrics = metrics
        self._waiting: deque[_Waiting] = deque()
        self._committing: asyncio.Task[None] | None = None
        self._closed = False

    async def accept(self, submission: Submission, departure: Departure | None = None) -> Accepted:
        """Commit a submission. If its request is cancelled before its turn, it is left out.

        departure: it is left out, too, if its client goes before its turn.
        Raises what :func:`jobs.queue.accept.accept` does, StorageUnavailable and ClientDisconnect.
        """
        span = current_span.get()
        if span is None:
            return await self._accept(submission, departure)
        accepted = await self._accept(replace(submission, traceparent=span.traceparent), departure)
        span.set({"scoreline.job.id": accepted.job_id, "scoreline.replayed": accepted.replayed})
        return accepted

    async def _accept(self, submission: Submission, departure: Departure | None) -> Accepted:
        size = _bytes(submission)
        if size > MAX_MEMBER_BYTES:
            return await self._accept_alone(submission)
        if self._closed:
            raise _stopping()
        waiting = _Waiting(submission, size)
        self._waiting.append(waiting)
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())
        if departure is not None:
            departure.watch(waiting.leave_out)
        try:
            outcome = await waiting.outcome
        finally:
            if departure is not None:
                departure.unwatch()
        if outcome is None:
            return await self._accept_alone(submission)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def announce(self, submission: Submission, job: Accepted) -> None:
        """Ring the workers for a job that was committed by others, and count it."""
        self._ringer.ring(submission.model)
        self._count(submission, job)

    async def close(self) -> None:
        """Refuse what waits, and return when the group that is being committed has ended."""
        self._closed = True
        self._refuse_waiting()
        if self._committing is not None:
            await asyncio.wait([self._committing])

    def _refuse_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().end(_stopping())

    async def _accept_alone(self, submission: Submission) -> Accepted:
        accepted = await self._threads.sql_of(submission.tenant, self._accept_and_ring, submission)
        self._count(submission, accepted)
        return accepted

    def _accept_and_ring(self, submission: Submission) -> Accepted:
        accepted = accept(self._database, submission)
        self._ringer.ring(submission.model)
        return accepted

    def _accept_group_and_ring(self, submissions: Sequence[Submission]) -> list[Outcome]:
        """Commit a group, and ring from the thread that has committed it, without a turn of the event loop."""
        outcomes = accept_group(self._database, submissions)
        accepted = (isinstance(outcome, Accepted) for outcome in outcomes)
        for model in {one.model for one, is_accepted in zip(submissions, accepted, strict=True) if is_accepted}:
            self._ringer.ring(model)
        return outcomes

    def _count(self, submission: Submission, outcome: Outcome) -> None:
        """Count a job, unless it was accepted earlier."""
        if isinstance(outcome, Accepted) and not outcome.replayed:
            self._metrics.count_accepted(submission, outcome.reused_items)

    async def _commit_all(self) -> None:
        """Commit what waits, one group after another, until nothing waits."""
        try:
            while self._waiting:
                group = self._next_group()
                try:
                    await self._commit(group)
                except Exception as error:
                    for waiting in group:
                        waiting.end(error)
                finally:
                    for waiting in group:
                        waiting.end(_stopping())
        finally:
            self._committing = None
            self._refuse_waiting()  # only if this task was cancelled

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        free = MAX_GROUP_BYTES
        while self._waiting and len(group) < MAX_MEMBERS and self._waiting[0].bytes <= free:
            group.append(self._waiting.popleft())
            free -= group[-1].bytes
        return group

    async def _commit(self, group: Sequence[_Waiting]) -> None:
        # The outcome is there already if the request was cancelled or its client has gone.
        wanted = [waiting for waiting in group if not waiting.outcome.done()]
        if not wanted:
            return
        for waiting in wanted:
            waiting.being_committed = True
        submissions = [waiting.submission for waiting in wanted]
        try:
            outcomes = await self._threads.sql(self._accept_group_and_ring, submissions)
        except StorageUnavailable as error:
            outcomes = [StorageUnavailable(str(error)) for _ in wanted]
        self._metrics.count_group(len(wanted))
        for waiting, outcome in zip(wanted, outcomes, strict=True):
            self._count(waiting.submission, outcome)
            waiting.end(outcome)


def _bytes(submission: Submission) -> int:
    """Return about how many bytes are stored for a submission."""
    of_chunks = (chunk.nbytes + CHUNK_BYTES for chunk in submission.chunks)
    return int(submission.prefix.nbytes) + sum(of_chunks)


def _stopping() -> StorageUnavailable:
    return StorageUnavailable("this process is stopping")
