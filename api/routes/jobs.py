"""``/v1/jobs``: submit, read, list, cancel and delete jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from api.answers.decisions.schemas import DecisionJobBody
from api.answers.error_responses import secured
from api.answers.items.request_schemas import JobBody, LikelihoodJobBody
from api.answers.openapi import add_lines_body, json_body
from api.answers.presentation import (
    EMBEDDED_ITEMS,
    encode_job,
    encode_lines,
    encode_page,
    expected_bytes,
    json_response,
    show_job,
)
from api.answers.schemas.jobs import DeletedJob, DryRun, Job, JobList, ScoreList
from api.budget import Kind, place_of
from api.principal import WithReadScope, WithScoreScope, check_again
from api.request_id import BrokenOffError
from api.requests.bodies.receiving import media_type, received_body
from api.requests.headers.accept import names
from api.requests.headers.cache_control import wants_computed
from api.requests.headers.idempotency import REPLAYED, IdempotencyKey
from api.requests.headers.prefer import MAX_WAIT_SECONDS, Handling, is_strict, preferred_wait
from api.requests.ids import BATCH_ID, JOB_ID, checked_job_id
from api.requests.sender import Sender
from api.requests.submission import read_job
from api.requests.uploads.upload import JSON_LINES, receive_upload
from api.requests.webhook import with_warning_of_disabled_endpoint
from api.results import Shown
from api.routes.dry_run import dry_run
from api.routes.score import EXAMPLE, QUESTION_ERRORS, SCORING_ERRORS
from api.service import Service, ServiceOf, StoreOf
from api.waiting.departure import departure_of
from api.waiting.waiters import WaitOutcome
from jobs.file_batches.reading import list_jobs_of_batch
from jobs.queue.ending import cancel, delete
from jobs.queue.read import get_job, list_jobs, most_embedded, read_scores
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import JobRecord, JobStatus, ScorePage, Submission
from public_api.paths import job_path
from scoring.error_codes import ErrorCode, RequestError, invalid

POLL_SECONDS = 1
"""The ``Retry-After`` of an accepted job: when the client should read it."""

PAGE_ITEMS = 1_000
"""The most items of a page of scores, and the number of items that a stream reads at a time."""

MAX_OFFSET = 2**31 - 1

LINES = "The first line is the body above without `items`, each further line an item: a text, or a list of token ids."
LINES_EXAMPLE = r"""{"query": "Query: how do I care for indoor plants?\n", "labels": [" yes", " no"]}
"Document: Water the fern once a week and keep it out of the sun.\nRelevant:"
"Document: The train to the coast leaves at nine.\nRelevant:"
"""

router = APIRouter(tags=["jobs"])


# What follows decides, before the caller is known, as what a request counts in the budget.


async def _sends_lines(request: Request) -> None:
    if media_type(request) == JSON_LINES:
        place_of(request).kind = Kind.UPLOAD


async def counts_as_stream_if_it_waits(request: Request) -> None:
    """Have a request that waits for jobs count as a stream."""
    if preferred_wait(request.headers.getlist("prefer")):
        place_of(request).kind = Kind.STREAM


async def _reads_lines(request: Request) -> None:
    if names(request, JSON_LINES):
        place_of(request).kind = Kind.STREAM


@router.post(
    "/v1/jobs",
    dependencies=[Depends(_sends_lines)],
    status_code=202,
    response_model=Job,
    responses={
        200: {"model": DryRun, "description": "with `dry_run`: what the job would take"},
        202: {
            "description": "accepted, now or (`Idempotency-Replayed: true`) earlier; `Location` is where it is found",
            "headers": {
                "Location": {"schema": {"type": "string"}},
                "Retry-After": {"schema": {"type": "integer"}},
                "Idempotency-Replayed": {"schema": {"const": "true"}},
            },
        },
        **secured(
            *SCORING_ERRORS,
            *QUESTION_ERRORS,
            ErrorCode.WEBHOOK_URL_FORBIDDEN,
            ErrorCode.JOB_NOT_FOUND,
            ErrorCode.JOB_CANCELLED,
            ErrorCode.JOB_FAILED,
        ),
    },
    openapi_extra=add_lines_body(
        json_body(
            JobBody,
            LikelihoodJobBody,
            DecisionJobBody,
            examples=[
                EXAMPLE | {"metadata": {"run": "7"}, "priority": "bulk"},
                {"kind": "likelihood", "query": "The capital of France is", "items": [" Paris"]},
            ],
        ),
        JSON_LINES,
        LINES,
        LINES_EXAMPLE,
    ),
)
async def submit(
    request: Request,
    service: ServiceOf,
    principal: WithScoreScope,
    idempotency_key: IdempotencyKey = None,
    handling: Handling = None,
) -> Response:
    """Submit a job. With the 202 it is committed: it survives the death of any process.

    A large one comes as JSON lines, plain or as gzip. While it comes its status is `receiving`, and no worker sees it;
    an upload that fails, at whichever line, leaves nothing behind.

    With `dry_run` nothing is stored, not even an Idempotency-Key, and the answer is a 200 that says what the job would
    take.

    With the header `Cache-Control: no-cache`, no scores of earlier jobs are used, where the service keeps any.
    """
    sender = Sender(principal, idempotency_key, is_strict(request, handling), wants_computed(request))
    if place_of(request).kind is Kind.UPLOAD:
        accepted, job = await receive_upload(request, service, sender)
    else:
        async with received_body(request, service.reading.limits, service.threads) as data:
            wanted = await service.bodies.read(request, principal.tenant, read_job, data, sender)
            del data
        submission = wanted.submission
        if wanted.dry_run:
            return json_response(await dry_run(service.store, service.acceptance, submission))
        admitted = await admit_job(service, submission)
        await check_again(request, service.callers)
        accepted = await service.acceptance.acceptor.accept(admitted)
        job = await service.store.of(submission.tenant, get_job, accepted.job_id)
    headers = {"Location": job_path(accepted.job_id), "Retry-After": str(POLL_SECONDS)}
    return json_response(show_job(job), 202, headers | (REPLAYED if accepted.replayed else {}))


@router.get("/v1/jobs", response_model=JobList, responses=secured(ErrorCode.INVALID_REQUEST, ErrorCode.BATCH_NOT_FOUND))
async def list_(
    store: StoreOf,
    principal: WithReadScope,
    status: Literal["receiving", "queued", "running", "succeeded", "failed", "cancelled", "expired"] | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern=JOB_ID, description="the id of the last job of the page before")] = None,
    batch: Annotated[str | None, Query(pattern=BATCH_ID, description="a batch, whose jobs are listed instead")] = None,
    calls: Annotated[bool, Query(description="calls, such as of `/v1/score`, are listed instead")] = False,
) -> Response:
    """List jobs, newest first. Those of a batch are listed in the order of its lines, and only if it is asked for."""
    if batch is not None and calls:
        raise invalid("a list is of a batch or of calls, not of both", "calls")
    wanted = JobStatus(status) if status is not None else None
    read = partial(list_jobs, calls=calls) if batch is None else partial(list_jobs_of_batch, batch_id=batch)
    # One job more than the limit shows whether there are more.
    jobs = await store.of(principal.tenant, read, status=wanted, limit=limit + 1, after=after)
    shown = [show_job(job) for job in jobs[:limit]]
    return json_response({"object": "list", "data": shown, "has_more": len(jobs) > limit})


@router.get(
    "/v1/jobs/{job_id}",
    dependencies=[Depends(counts_as_stream_if_it_waits)],
    response_model=Job,
    responses=secured(ErrorCode.JOB_NOT_FOUND),
)
async def read(
    request: Request,
    job_id: str,
    service: ServiceOf,
    principal: WithReadScope,
    prefer: Annotated[
        str | None, Header(description=f"`wait=N`: answer when the job ends, or after N (at most {MAX_WAIT_SECONDS}) s")
    ] = None,
) -> Response:
    """Read a job; its result too, once it has succeeded and if it has at most 1,000 items.

    Once it has ended, `provenance` says what computed its scores: what is needed to get the same bits again.
    """
    job_id = checked_job_id(job_id)
    wait = preferred_wait(request.headers.getlist("prefer")) if prefer is not None else None
    headers = {"Preference-Applied": f"wait={wait}"} if wait is not None else {}
    job, page, provenance = await service.threads.sql_of(principal.tenant, _read, service, principal.tenant, job_id)
    if wait and not job.status.ended:
        waited = await service.waiters.wait(job_id, wait, departure_of(request))
        if waited.outcome is WaitOutcome.DISCONNECTED:
            raise ClientDisconnect
        job, page, provenance = await service.threads.sql_of(principal.tenant, _read, service, principal.tenant, job_id)
    if page is None:
        return json_response(show_job(job, provenance), headers=headers)
    place_of(request).reserve_answer(expected_bytes(job, job.total_items, page.number_of_targets))
    encoded = await service.threads.text_of(principal.tenant, encode_job, page, provenance, service.receipt_keys)
    return json_response(encoded, headers=headers)


@router.get(
    "/v1/jobs/{job_id}/scores",
    dependencies=[Depends(_reads_lines)],
    response_model=ScoreList,
    responses={
        200: {
            "description": "a page; or, with `Accept: application/x-ndjson`, all of a succeeded job, one line an item",
            "content": {JSON_LINES: {"schema": {"$ref": "#/components/schemas/ScoreLine"}}},
        },
        **secured(
            ErrorCode.INVALID_REQUEST,
            ErrorCode.JOB_NOT_FOUND,
            ErrorCode.JOB_NOT_FINISHED,
            ErrorCode.JOB_CANCELLED,
            ErrorCode.JOB_FAILED,
        ),
    },
)
async def scores(
    request: Request,
    job_id: str,
    service: ServiceOf,
    principal: WithReadScope,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET, description="the first item's index")] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_ITEMS, description="items of a page; JSON lines have them all")] = 100,
) -> Response:
    """Read scores, in pages or as JSON lines.

    Pages hold what is scored so far, also while a job runs and after it failed or was cancelled. JSON lines are a whole
    result or none: for a job that did not succeed they are answered with 409.
    """
    job_id = checked_job_id(job_id)
    if place_of(request).kind is not Kind.STREAM:
        page = await service.store.of(principal.tenant, read_scores, job_id, offset, limit)
        place_of(request).reserve_answer(expected_bytes(page.job, len(page.indices), page.number_of_targets))
        then = service.results.counts.then
        return json_response(await service.threads.text_of(principal.tenant, then, encode_page, page))
    first = await service.store.of(principal.tenant, _read_succeeded, job_id, offset)
    return StreamingResponse(_lines(service, principal.tenant, first, offset), media_type=JSON_LINES)


@router.post("/v1/jobs/{job_id}/cancel", response_model=Job, responses=secured(ErrorCode.JOB_NOT_FOUND))
async def cancel_(job_id: str, service: ServiceOf, principal: WithScoreScope) -> Response:
    """Cancel a job. One that has ended stays as it is, so cancelling twice is safe."""
    job = await service.store.of(principal.tenant, cancel, checked_job_id(job_id))
    service.metrics.count_ended(job.id, job.status)
    _wake(service, job.id)
    return json_response(show_job(job))


@router.delete("/v1/jobs/{job_id}", response_model=DeletedJob, responses=secured(ErrorCode.JOB_NOT_FOUND))
async def delete_(job_id: str, service: ServiceOf, principal: WithScoreScope) -> Response:
    """Delete a job, its inputs and its scores. A job that has not ended is cancelled first."""
    job_id = checked_job_id(job_id)
    await service.store.of(principal.tenant, delete, job_id)
    _wake(service, job_id)
    return json_response({"id": job_id, "object": "scoring.job", "deleted": True})


def _wake(service: Service, job_id: str) -> None:
    """Wake the requests that wait for a job, in this process and in others."""
    service.waiters.on_ended(job_id)
    service.acceptance.ringer.announce([job_id])


async def admit_job(service: Service, submission: Submission) -> Submission:
    """Return a job for which there is room, as it is to be stored. Raises RequestError, StorageUnavailable."""
    await service.acceptance.doors.of(submission).admission.admit_job(submission)
    if submission.webhook is None:
        return submission
    return await service.store.in_turn(submission.tenant, with_warning_of_disabled_endpoint, submission)


def _read(service: Service, tenant: str, job_id: str) -> tuple[JobRecord, ScorePage | None, Shown | None]:
    job = get_job(service.store.database, tenant, job_id)
    job, page = service.results.read(job, most_embedded(job, EMBEDDED_ITEMS))
    return job, page, service.results.read_provenance(job, page)


def _read_succeeded(db: Database, tenant: str, job_id: str, offset: int) -> ScorePage:
    """Read a page of a job, and raise RequestError unless the job has succeeded."""
    page = read_scores(db, tenant, job_id, offset, PAGE_ITEMS)
    match page.job.status:
        case JobStatus.SUCCEEDED:
            return page
        case JobStatus.CANCELLED:
            raise RequestError(ErrorCode.JOB_CANCELLED, f"{job_id} was cancelled; pages hold what was scored before")
        case JobStatus.FAILED | JobStatus.EXPIRED:
            raise RequestError(
                ErrorCode.JOB_FAILED, f"{job_id} has {page.job.status}; pages hold what was scored before"
            )
    raise RequestError(ErrorCode.JOB_NOT_FINISHED, f"{job_id} is {page.job.status}; pages hold what is scored so far")


async def _lines(service: Service, tenant: str, page: ScorePage, offset: int) -> AsyncIterator[bytes]:
    """Yield one line per item, a page at a time, so that the memory does not grow with the job.

    Raises BrokenOffError if a page can't be read, for example because the job was deleted meanwhile. Lines that simply
    ended would look like a whole result.
    """
    try:
        while True:
            yield await service.threads.text_of(tenant, service.results.counts.then, encode_lines, page)
            if page.next_offset is None:
                return
            page = await service.store.of(tenant, _read_succeeded, page.job.id, page.next_offset)
    except (RequestError, StorageUnavailable) as error:
        raise BrokenOffError(str(error)) from error
