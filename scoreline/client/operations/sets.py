"""Sets of short jobs: submitting many with one request, and waiting for many with another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from scoreline.client.errors import InvalidRequest, NotFound, ScorelineError, error_for
from scoreline.client.exchange.bodies import EncodedJson
from scoreline.client.exchange.flow import Exchange, Flow, Request
from scoreline.client.exchange.sending import REPEATED_STATUSES, Service, send
from scoreline.client.job_objects import Job
from scoreline.client.operations.jobs import JobOrId, reading
from scoreline.client.operations.scoring import SLACK_SECONDS

PATH = "/v1/jobs/sets"

MAX_JOBS = 64
"""The most jobs of a set."""

WAIT_SECONDS = 5
"""How long the service may hold a request for a set. It holds the results of jobs until the last one has ended."""

TOO_LARGE = 413

T = TypeVar("T")


def request_of(flow: Flow[T]) -> Request[T]:
    """Return the request with which an operation begins. Raises what the operation does before it."""
    command = next(flow)
    assert isinstance(command, Exchange)
    return command.request


def submit_set(service: Service, requests: Sequence[Request[Job]]) -> Flow[list[Job | ScorelineError | None]]:
    """Submit jobs by the requests that would each submit one. Return what comes of each.

    It is None for a job that is to be sent alone: the service knows no sets, or refuses the job for now, or would not
    take it together with the others. Raises ScorelineError if the service takes none of them.
    """
    body = EncodedJson(b'{"jobs": [%b]}' % b", ".join(map(_entry, requests)))
    try:
        answers = yield from send(service, Request("POST", PATH, _entries, body=body), patient=True)
        return [_outcome(answer, request.parse) for answer, request in zip(answers, requests, strict=True)]
    except (InvalidRequest, NotFound):
        return [None] * len(requests)


def wait_for_set(service: Service, jobs: Sequence[JobOrId]) -> Flow[list[Job | ScorelineError | None]]:
    """Return jobs when all have ended, or after some seconds. None for those that are to be read alone."""
    ids = ",".join(job if isinstance(job, str) else job.id for job in jobs)
    headers, seconds = {"Prefer": f"wait={WAIT_SECONDS}"}, WAIT_SECONDS + SLACK_SECONDS
    request = Request("GET", PATH, _entries, params={"ids": ids}, headers=headers, seconds=seconds)
    try:
        answers = yield from send(service, request, patient=True)
        found = [_outcome(answer, reading(job)) for answer, job in zip(answers, jobs, strict=True)]
    except (InvalidRequest, NotFound):
        return [None] * len(jobs)
    return [None if isinstance(job, Job) and _lacks_result(job) else job for job in found]


def _entry(request: Request[Job]) -> bytes:
    """Return a job of a set: the body of its request, with its Idempotency-Key."""
    assert request.body is not None
    body = request.body.content()
    assert isinstance(body, bytes)
    key = json.dumps(request.headers["Idempotency-Key"]).encode()
    return b'{"idempotency_key": %b, %b' % (key, body.removeprefix(b"{"))


def _entries(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries: list[Mapping[str, Any]] = raw["data"]
    return entries


def _outcome(answer: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Job]) -> Job | ScorelineError | None:
    status, body = answer["status_code"], answer["body"]
    if status < 300:
        return read(body)
    why = body["error"]
    error = error_for(why["code"], why["message"], status, param=why["param"], retry_after=answer["retry_after"])
    if status == TOO_LARGE or (status in REPEATED_STATUSES and error.code != "quota_exceeded"):
        return None
    return error


def _lacks_result(job: Job) -> bool:
    return job.status == "succeeded" and job.result is None and job.likelihoods is None and job.decision is None
