"""Read the body of ``POST /v1/jobs/sets``: jobs, each of which is read as if it were sent alone.

A body may be read in another process, so what comes of each job is plain data.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from api.models.models import DroppedError, NotLoadedError
from api.reading import ReadingContext
from api.requests.headers.idempotency import KEY_PATTERN, idempotency_of
from api.requests.sender import Sender
from api.requests.submission import JOBS, job_of, parse_object
from jobs.store.records import Submission
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.quoting import QUOTED_CHARACTERS, quote_name

MAX_JOBS = 64
"""The most jobs of a set, which is as many as one transaction stores (:mod:`api.acceptance.accepting`)."""

TOKENS_AT_ONCE = 2**20
"""When the jobs that were read have this many tokens and items, no further job of the set is taken."""

SECONDS_AT_ONCE = 20.0
"""When reading has taken this long, no further job of the set is taken. A job may take a second for each million
characters before it is refused, and what is refused has no tokens that count."""

ReadJob = Submission | Mapping[str, Any]
"""A job, or the fields of the RequestError for which it is refused."""


def read_job_set(
    reading: ReadingContext, data: bytes, sender: Sender, *, refuses_dropped: bool = False
) -> list[ReadJob]:
    """Return what each job of a set is. Raises RequestError for a body that is no set, and NotLoadedError.

    refuses_dropped: there is no memory for all models of the set at a time. So behind the first job that is taken, one
    whose model is not there is refused, to be sent again.
    """
    body = parse_object(data)
    if unknown := next((name for name in body if name != "jobs"), None):
        message = f"there is no field {quote_name(unknown)} beside jobs: each job has fields of its own"
        raise RequestError(ErrorCode.UNKNOWN_PARAMETER, message, param=unknown[:QUOTED_CHARACTERS])
    jobs = body.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise invalid("jobs must be a list of one job or more", "jobs")
    if len(jobs) > MAX_JOBS:
        message = f"a set has {MAX_JOBS} jobs at most: send {len(jobs)} as several sets, or as a file to /v1/batches"
        raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message, param="jobs")
    reading = reading.for_one_of(len(jobs))
    if not refuses_dropped:
        _look_up_models(reading, jobs, sender)
    found: list[ReadJob] = []
    size, seconds, started = 0, 0.0, time.monotonic()
    for job in jobs:
        reading.stop_if_unwanted()
        try:
            _check_room(size, seconds)
            submission = _read(reading, job, sender)
        except RequestError as error:
            found.append(vars(error))
        except NotLoadedError:
            if not refuses_dropped or not any(isinstance(one, Submission) for one in found):
                raise
            found.append(vars(DroppedError()))
        else:
            found.append(submission)
            size += submission.total_items + len(submission.prefix) + sum(chunk.tokens for chunk in submission.chunks)
        seconds = time.monotonic() - started
    return found


def _look_up_models(reading: ReadingContext, jobs: Sequence[object], sender: Sender) -> None:
    """Raise NotLoadedError if a model of a job is not in memory, before any job is read: all are read again then."""
    for job in jobs:
        with suppress(RequestError):  # which the job itself is told
            reading.of_model(job.get("model") if isinstance(job, dict) else None, sender.principal.policy)


def _check_room(size: int, seconds: float) -> None:
    """Raise RequestError REQUEST_TOO_LARGE if the jobs before one, by their size and time, are enough for a set."""
    if size > TOKENS_AT_ONCE:
        before = f"have {size} tokens and items"
    elif seconds > SECONDS_AT_ONCE:
        before = f"took {seconds:.0f} s to read"
    else:
        return
    message = f"the jobs before it in this set {before}: send it in another set"
    raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message)


def _read(reading: ReadingContext, job: object, sender: Sender) -> Submission:
    if not isinstance(job, dict):
        raise invalid("a job must be a JSON object")
    body = {name: value for name, value in job.items() if name != "idempotency_key"}
    key = job.get("idempotency_key")
    if key is not None and not (isinstance(key, str) and re.fullmatch(KEY_PATTERN, key)):
        raise invalid("idempotency_key must be a string of 1 to 255 printable ASCII characters", "idempotency_key")
    # The bytes that Python makes of a body, so that its own client may send a job in a set, and again alone.
    idempotency = idempotency_of(key, JOBS, json.dumps(body).encode()) if key is not None else None
    wanted = job_of(reading, body, sender, idempotency)
    if wanted.dry_run:
        message = "a set is stored: send a dry run alone, to /v1/jobs"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="dry_run")
    return wanted.submission
