"""``/v1/jobs/sets``: many short jobs with one request, and their results with another."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from api.answers.error_responses import STATUS, secured, storage_unavailable
from api.answers.job_sets import Answer, encode_set, show_error
from api.answers.openapi import json_body
from api.answers.presentation import EMBEDDED_ITEMS, encode, encode_job, expected_bytes, json_response, show_job
from api.answers.schemas.jobs import JobSet, JobSetBody
from api.budget import place_of
from api.models.models import DroppedError
from api.principal import WithReadScope, WithScoreScope, check_again
from api.requests.bodies.receiving import received_body
from api.requests.headers.cache_control import wants_computed
from api.requests.headers.prefer import MAX_WAIT_SECONDS, Handling, is_strict, preferred_wait
from api.requests.ids import JOB_ID
from api.requests.job_set import MAX_JOBS, read_job_set
from api.requests.sender import Sender
from api.results import Shown
from api.routes.jobs import admit_job, counts_as_stream_if_it_waits
from api.routes.score import EXAMPLE, SCORING_ERRORS
from api.service import Service, ServiceOf
from api.waiting.departure import departure_of
from api.waiting.waiters import WaitOutcome
from jobs.queue.read import jobs_of, most_items, progress_of, results_of
from jobs.store.database import StorageUnavailable
from jobs.store.records import Accepted, JobRecord, JobStatus, ScorePage, Submission
from jobs.tenancy.ownership import job_not_found
from scoring.error_codes import ErrorCode, RequestError, invalid

if TYPE_CHECKING:
    from judgement.receipts import ReceiptKeys

MAX_ID_CHARACTERS = 68

router = APIRouter(tags=["jobs"])

T = TypeVar("T")

Found = tuple[JobRecord, ScorePage | None, Shown | None]
"""A job, and if they are shown its scores and what computed them."""


@router.post(
    "/v1/jobs/sets",
    status_code=202,
    response_model=JobSet,
    responses={
        202: {"description": "what each job was answered, in their order: one with a `status_code` of 202 is stored"},
        **secured(*SCORING_ERRORS),
    },
    openapi_extra=json_body(JobSetBody, examples=[{"jobs": [EXAMPLE | {"idempotency_key": "row-1"}]}]),
)
async def submit_set(
    request: Request, service: ServiceOf, principal: WithScoreScope, handling: Handling = None
) -> Response:
    """Submit at most 64 jobs, each of which is answered as if it were sent alone.

    None fails because of another. If the service can take none of them now, the request is refused as a whole. It
    counts as one request in rate limits. A job is safe to repeat if it has an `idempotency_key`, which is what the
    header is for a job that is sent alone.
    """
    if request.headers.get("idempotency-key") is not None:
        raise invalid("a set has no Idempotency-Key: give each of its jobs an idempotency_key", "Idempotency-Key")
    sender = Sender(principal, is_strict=is_strict(request, handling), wants_computed=wants_computed(request))
    async with received_body(request, service.reading.limits, service.threads) as data:
        reading = partial(service.bodies.read, request, principal.tenant, read_job_set, data, sender)
        try:
            read = await reading()
        except DroppedError:
            read = await reading(refuses_dropped=True)
    # One after the other, since what the first one is admitted by mostly holds for all.
    admitted = [
        await _or_error(admit_job(service, one)) if isinstance(one, Submission) else RequestError(**one) for one in read
    ]
    await check_again(request, service.callers)
    outcomes = await asyncio.gather(*(_outcome(service, one) for one in admitted))
    refused = [one for one in outcomes if isinstance(one, RequestError)]
    if len(refused) == len(outcomes) and all(STATUS[error.code] == 503 for error in refused):
        raise refused[0]
    for error in refused:
        if error.limit is not None:
            service.metrics.count_refused(error.limit)
    ids = [one.job_id for one in outcomes if isinstance(one, Accepted)]
    found = await service.store.in_turn(principal.tenant, jobs_of, ids) if ids else {}
    return json_response(await service.threads.text_of(principal.tenant, _encode_accepted, outcomes, found), 202)


@router.get(
    "/v1/jobs/sets",
    dependencies=[Depends(counts_as_stream_if_it_waits)],
    response_model=JobSet,
    responses=secured(ErrorCode.INVALID_REQUEST),
)
async def read_set(
    request: Request,
    service: ServiceOf,
    principal: WithReadScope,
    ids: Annotated[
        str,
        Query(max_length=MAX_JOBS * MAX_ID_CHARACTERS, description=f"ids of at most {MAX_JOBS} jobs, between commas"),
    ],
    prefer: Annotated[
        str | None,
        Header(description=f"`wait=N`: answer when all have ended, or after N (at most {MAX_WAIT_SECONDS}) s"),
    ] = None,
) -> Response:
    """Read jobs, each as if it were read alone, in the order of their ids.

    The results of jobs that have succeeded come with them, of 1,000 items together at most: read those alone whose
    result is left out.
    """
    job_ids = ids.split(",")
    if len(job_ids) > MAX_JOBS:
        raise invalid(f"a set has {MAX_JOBS} jobs at most, not {len(job_ids)}", "ids")
    if len(set(job_ids)) < len(job_ids):
        raise invalid("each job of a set is named once", "ids")
    wait = preferred_wait(request.headers.getlist("prefer")) if prefer is not None else None
    headers = {"Preference-Applied": f"wait={wait}"} if wait is not None else {}
    if wait:
        await _wait(request, service, principal.tenant, job_ids, wait)
    found = await service.threads.sql_of(principal.tenant, _read, service, principal.tenant, job_ids)
    pages = [page for _, page, _ in found.values() if page is not None]
    place_of(request).reserve_answer(
        sum(expected_bytes(page.job, len(page.indices), page.number_of_targets) for page in pages)
    )
    content = await service.threads.text_of(principal.tenant, _encode_found, job_ids, found, service.receipt_keys)
    return json_response(content, headers=headers)


async def _or_error(step: Awaitable[T]) -> T | RequestError:
    """Return what comes of a step with a job of a set, or the error for which this job is refused."""
    try:
        return await step
    except RequestError as error:
        return error
    except StorageUnavailable:
        return storage_unavailable()


async def _outcome(service: Service, admitted: Submission | RequestError) -> Accepted | RequestError:
    """Return what comes of a job of a set: it is stored, or it is refused with an error of its own."""
    if isinstance(admitted, RequestError):
        return admitted
    return await _or_error(service.acceptance.acceptor.accept(admitted))


def _encode_accepted(outcomes: Sequence[Accepted | RequestError], found: Mapping[str, JobRecord]) -> bytes:
    return encode_set(
        show_error(one) if isinstance(one, RequestError) else _accepted(found.get(one.job_id)) for one in outcomes
    )


def _accepted(job: JobRecord | None) -> Answer:
    # One that is missing was deleted meanwhile.
    return show_error(job_not_found()) if job is None else Answer(202, encode(show_job(job)))


async def _wait(request: Request, service: Service, tenant: str, job_ids: Sequence[str], seconds: int) -> None:
    """Wait until all of these jobs have ended, which a tenant may see, or for some seconds."""
    last_moment = time.monotonic() + seconds
    wanted = [job_id for job_id in job_ids if re.fullmatch(JOB_ID, job_id)]
    found = await service.store.in_turn(tenant, progress_of, wanted) if wanted else {}
    for job in found.values():
        if job.status.ended or job.tenant != tenant:
            continue
        left = max(0.0, last_moment - time.monotonic())
        waited = await service.waiters.wait(job.id, left, departure_of(request))
        if waited.outcome is WaitOutcome.DISCONNECTED:
            raise ClientDisconnect
        if waited.outcome is not WaitOutcome.ENDED:
            return


def _read(service: Service, tenant: str, job_ids: Sequence[str]) -> dict[str, Found]:
    """Read the jobs that a tenant may see, and the results of those that come first and fit into one answer.

    Blocks on SQL.
    """
    wanted = [job_id for job_id in job_ids if re.fullmatch(JOB_ID, job_id)]
    known = jobs_of(service.store.database, wanted) if wanted else {}
    jobs = {job_id: job for job_id, job in known.items() if job.tenant == tenant}
    shown: list[str] = []
    room = 1.0  # of one answer, as a share
    for job in (jobs[job_id] for job_id in dict.fromkeys(job_ids) if job_id in jobs):
        service.metrics.count_ended(job.id, job.status)
        share = job.total_items / most_items(job, EMBEDDED_ITEMS)
        if job.form is not None:
            share = min(share, 1.0)  # the answer to questions is always shown
        if job.status is JobStatus.SUCCEEDED and share <= room:
            room -= share
            shown.append(job.id)
    results = results_of(service.store.database, shown) if shown else {}
    found: dict[str, Found] = {}
    for job_id, before in jobs.items():
        job, page = results.get(job_id, (before, None))
        service.results.counts.count_page(page)
        found[job_id] = job, page, service.results.read_provenance(job, page)
    return found


def _encode_found(job_ids: Sequence[str], found: Mapping[str, Found], keys: ReceiptKeys | None) -> bytes:
    return encode_set(
        _answer(*found[job_id], keys) if job_id in found else show_error(job_not_found()) for job_id in job_ids
    )


def _answer(job: JobRecord, page: ScorePage | None, provenance: Shown | None, keys: ReceiptKeys | None) -> Answer:
    return Answer(200, encode(show_job(job, provenance)) if page is None else encode_job(page, provenance, keys))
