"""Waiting for the end of a job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from scoreline.client.errors import ScorelineError, TimedOut
from scoreline.client.exchange.flow import Flow, Request
from scoreline.client.exchange.sending import Service, send
from scoreline.client.job_objects import Job
from scoreline.client.operations.jobs import JobOrId, ended_without_success, job_path, reading
from scoreline.client.operations.scoring import SLACK_SECONDS
from scoreline.client.progress import shown

WAIT_SECONDS = 30
"""Time that the service may hold one request, after which the client asks again."""

SHOWN_WAIT_SECONDS = 1
"""Time that it may hold a request whose caller wants to see the progress."""


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
    left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
    held = math.ceil(min(longest, left))
    headers = {"Prefer": f"wait={held}"}
    request = Request("GET", job_path(job), reading(job), headers=headers, seconds=held + SLACK_SECONDS)
    try:
        return (yield from send(service, request, patient=True, until=deadline))
    except ScorelineError as error:
        if deadline is None or time.monotonic() < deadline or not error.status == 0:
            raise
        job_id = job if isinstance(job, str) else job.id
        raise timed_out(f"{job_id} is not known to have ended in time: {error.message}", job_id) from error


def timed_out(message: str, job_id: str) -> TimedOut:
    """Return the error for a job that has not ended in the time that the caller gave."""
    return TimedOut("timeout", message, job_id=job_id)
