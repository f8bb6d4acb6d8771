"""``POST /v1/score``: a job at interactive urgency, and a wait for its end.

There is no second mechanism: the call is committed like any job, so bursts of calls batch by themselves, a worker's
death costs the caller a moment, and a call that runs out of time has a job to come back to.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from api.answers.error_responses import error_response, secured
from api.answers.openapi import json_body
from api.answers.presentation import encode, json_response, show_scoring
from api.answers.schemas import ScoreBody, ScoreResponse
from api.principal import Scorer
from api.requests.body import read_body
from api.requests.idempotency import REPLAYED, IdempotencyKey, idempotency_of
from api.requests.submission import Call, read_call
from api.service import Service, ServiceOf
from api.waiting import Outcome, client_left
from jobs.queue.accept import accept
from jobs.queue.ending import cancel
from jobs.queue.read import get_job, read_scores
from jobs.store.records import Accepted, JobRecord, JobStatus
from jobs.webhooks.outbox import job_path
from scoring.error_codes import ErrorCode, RequestError

router = APIRouter(tags=["scoring"])

SCORING_ERRORS = (
    ErrorCode.MISSING_QUERY,
    ErrorCode.MISSING_ITEMS,
    ErrorCode.MISSING_LABEL_TOKEN_IDS,
    ErrorCode.EMPTY_QUERY,
    ErrorCode.EMPTY_LABEL_TOKEN_IDS,
    ErrorCode.INVALID_LABEL_TOKEN_IDS,
    ErrorCode.TOO_MANY_LABELS,
    ErrorCode.NEGATIVE_TOKEN_ID,
    ErrorCode.TOKEN_ID_EXCEEDS_VOCAB,
    ErrorCode.LABEL_NOT_SINGLE_TOKEN,
    ErrorCode.MIXED_INPUT_TYPES,
    ErrorCode.DELIMITER_IN_INPUT,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED,
    ErrorCode.INVALID_JSON,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.REQUEST_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.IDEMPOTENCY_KEY_REUSED,
    ErrorCode.IDEMPOTENCY_IN_PROGRESS,
    ErrorCode.QUOTA_EXCEEDED,
    ErrorCode.STORAGE_UNAVAILABLE,
    ErrorCode.MODEL_UNAVAILABLE,
    ErrorCode.OVERLOADED,
)
"""How a request to score can fail, waited for or not."""

EXAMPLE = {"query": "The capital of France is", "items": [""], "label_token_ids": [311, 315], "apply_softmax": True}


@router.post(
    "/v1/score",
    response_model=ScoreResponse,
    responses=secured(*SCORING_ERRORS, ErrorCode.JOB_CANCELLED, ErrorCode.JOB_FAILED, ErrorCode.TIMEOUT),
    openapi_extra=json_body(ScoreBody, EXAMPLE),
)
async def score(
    request: Request,
    service: ServiceOf,
    principal: Scorer,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Score items and wait for it.

    A call that is out of time is answered with 504, and `Location` names its job, which goes on unless `on_timeout` is
    `cancel`. A client that goes away cancels its job, unless it sent an Idempotency-Key: then it may come back for it.
    """
    data = await read_body(request, service.api.max_body_bytes)
    idempotency = idempotency_of(idempotency_key, "POST /v1/score", data)
    call = await service.threads.text(read_call, service, principal, data, idempotency)
    accepted, ended = await service.threads.sql(_accept, service, call)
    given_up = not ended and await _wait(request, service, call, accepted.job_id)
    return await service.threads.sql(_answer, service, call, accepted, given_up)


async def _wait(request: Request, service: Service, call: Call, job_id: str) -> bool:
    """Wait until the job has ended or the time is up. Returns whether the job was given up for that.

    Raises ClientDisconnect.
    """
    service.ringer.ring(service.card.name)
    outcome = await service.waiters.wait(job_id, call.timeout, lambda: client_left(request))
    left = outcome is Outcome.DISCONNECTED
    given_up = (left and call.submission.idempotency is None) or (
        outcome is Outcome.TIMED_OUT and call.cancel_on_timeout
    )
    if given_up:
        await service.threads.sql(cancel, service.database, call.submission.tenant, job_id)
    if left:
        raise ClientDisconnect
    return given_up


def _accept(service: Service, call: Call) -> tuple[Accepted, bool]:
    """Commit the call's job. Returns it, and whether it has ended already: nobody will announce that again."""
    service.admission.admit_call(call.submission, call.timeout)
    accepted = accept(service.database, call.submission)
    if not accepted.replayed:
        service.metrics.accepted(call.submission)
    if call.submission.total_items > 0 and not accepted.replayed:
        return accepted, False
    return accepted, get_job(service.database, call.submission.tenant, accepted.job_id).status.ended


def _answer(service: Service, call: Call, accepted: Accepted, given_up: bool) -> Response:
    """What to say of the job as it stands now, however the wait ended."""
    headers = REPLAYED if accepted.replayed else {}
    job = get_job(service.database, call.submission.tenant, accepted.job_id)
    service.metrics.saw(job.id, job.status)
    if job.status is JobStatus.SUCCEEDED:
        page = read_scores(service.database, call.submission.tenant, job.id, 0, max(1, job.total_items))
        return json_response(encode(show_scoring(page)), headers=headers)
    return error_response(_why_not(job, call, given_up), {**headers, "Location": job_path(job.id)})


def _why_not(job: JobRecord, call: Call, given_up: bool) -> RequestError:
    match job.status:
        case JobStatus.FAILED if job.error is not None:
            return RequestError(job.error.code, f"{job.error.message} ({job.id})")
        case JobStatus.CANCELLED if not given_up:
            return RequestError(ErrorCode.JOB_CANCELLED, f"{job.id} was cancelled")
        case JobStatus.CANCELLED | JobStatus.EXPIRED:
            return RequestError(ErrorCode.TIMEOUT, f"not scored within {call.timeout:g} s; {job.id} was given up")
    return RequestError(ErrorCode.TIMEOUT, f"not scored within {call.timeout:g} s; {job.id} goes on")
