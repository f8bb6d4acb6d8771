"""Waiting for the end of a job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from scoreline.client.errors import ScorelineError, TimedOut
from scoreline.client.exchange.flow import Flow, Request
from scoreline.client.exchange.sending import AWAY_STATUSES, Service, send
from scoreline.client.job_objects import Job
from scoreline.client.operations.jobs import JobOrId, ended_without_success, job_path, reading
from scoreline.client.operations.scoring import SLACK_SECONDS
from scoreline.client.progress import shown

WAIT_SECONDS = 30
"""Time that the service may hold one request, after which the client asks again."""

SHOWN_WAIT_SECONDS = 1
"""Time that it may hold a request whose caller wants to see the progress."""

T = TypeVar("T")


def wait(
    service: Service,
    job: JobOrId,
    timeout: float | None = None,
    *,
    progress: Callable[[Job], object] | None = None,
    bar: bool = False,
) -> Flow[Job]:
    """Wait for a job to succeed and return it. A restart of the service meanwhile does no harm.

    Raises JobFailed, JobCancelled or JobExpired where it ends otherwise; their ``job`` is the job. Raises TimedOut,
    which is a TimeoutError, after ``timeout`` seconds; None: never.

    progress: called with the job about once a second, and at its end. bar: show a bar on standard error.

    >>> job = client.submit("Review: ", ["A lovely room."], labels=[" positive"])
    >>> client.wait(job, timeout=60).scored_items
    1
    """
    job_id = job if isinstance(job, str) else job.id
    deadline = None if timeout is None else time.monotonic() + timeout
    with shown(progress, job_id if bar else None) as show:
        while True:
            found = yield from _held(service, job, deadline, WAIT_SECONDS if show is None else SHOWN_WAIT_SECONDS)
            if show is not None:
                show(found)
            if found.ended:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise timed_out(f"{job_id} is still {found.status} after {timeout:g} s", job_id)
    if found.status != "succeeded":
        raise ended_without_success(found)
    return found


def _held(service: Service, job: JobOrId, deadline: float | None, longest: int) -> Flow[Job]:
    """Return a job when it has ended, or after some time."""

    def request() -> Request[Job]:
        left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
        held = math.ceil(min(longest, left))
        headers = {"Prefer": f"wait={held}"}
        return Request("GET", job_path(job), reading(job), headers=headers, seconds=held + SLACK_SECONDS)

    job_id = job if isinstance(job, str) else job.id
    return (yield from read_until(service, request, deadline, job_id, job_id=job_id))


def read_until(
    service: Service,
    asked: Request[T] | Callable[[], Request[T]],
    deadline: float | None,
    name: str,
    *,
    job_id: str | None = None,
) -> Flow[T]:
    """Read the state of what is waited for. Raises TimedOut if the service is away at the deadline.

    asked: the request, or what makes it each time it is sent. name: what is waited for. job_id: the same, if it is a
    job.
    """
    try:
        return (yield from send(service, asked, patient=True, until=deadline))
    except ScorelineError as error:
        is_away = error.status in AWAY_STATUSES and not error.is_final
        if deadline is None or time.monotonic() < deadline or not is_away:
            raise
        raise timed_out(f"{name} is not known to have ended in time: {error.message}", job_id) from error


def timed_out(message: str, job_id: str | None = None) -> TimedOut:
    """Return the error for a job, or a batch, that has not ended in the time that the caller gave."""
    return TimedOut("timeout", message, job_id=job_id)
