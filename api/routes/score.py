"""Answering calls, such as ``POST /v1/score``: submit a job at interactive priority and wait for its end.

A call is committed like any other job. Bursts of calls are therefore batched, another worker takes over if one dies,
and the caller can still read the job after a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from api.answers.completions import encode_completion
from api.answers.error_responses import error_response
from api.answers.presentation import ScoredJob, encode_scoring, expected_bytes, json_response
from api.answers.reranking import encode_ranking
from api.budget import place_of
from api.principal import check_again
from api.requests.bodies.receiving import received_body
from api.requests.calls import read_call
from api.requests.headers.idempotency import REPLAYED
from api.requests.sender import Sender
from api.requests.submission import Call
from api.service import Service
from api.waiting.departure import departure_of
from api.waiting.waiters import WaitOutcome
from jobs.queue.ending import cancel
from jobs.queue.read import get_job
from jobs.store.records import Accepted, JobRecord, JobResult, JobStatus, ScorePage, Submission
from jobs.store.signed_result import CallResult, verified_result
from public_api.paths import job_path
from scoring.error_codes import ErrorCode, RequestError
from scoring.options import Shape

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
    ErrorCode.INVALID_TEMPLATE,
    ErrorCode.INVALID_ARTEFACT,
    ErrorCode.UNSUPPORTED_PARAMETER,
    ErrorCode.UNKNOWN_PARAMETER,
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
"""The errors of a request to score, whether or not its caller waits."""

CALL_ERRORS = (
    *SCORING_ERRORS,
    ErrorCode.JOB_CANCELLED,
    ErrorCode.JOB_FAILED,
    ErrorCode.TIMEOUT,
    ErrorCode.SERVER_STOPPING,
)
"""The errors of a call."""

QUESTION_ERRORS = (
    ErrorCode.MISSING_QUESTIONS,
    ErrorCode.INVALID_QUESTION,
    ErrorCode.TOO_MANY_QUESTIONS,
    ErrorCode.TOO_MANY_OPTIONS,
    ErrorCode.LABELS_NOT_SINGLE_TOKENS,
    ErrorCode.IMAGES_NOT_SUPPORTED,
)
"""The further errors of questions."""

STOP_RETRY_SECONDS = 1.0
"""The ``Retry-After`` of a server that stops: by then, another one takes requests, or soon will."""

SMALL_RANKING = 100
"""A ranking with at most so many results, and without documents, is encoded in less time than a thread takes."""

EXAMPLE = {
    "query": "Query: how do I care for indoor plants?\n",
    "items": [
        "Document: Water the fern once a week and keep it out of the sun.\nRelevant:",
        "Document: The train to the coast leaves at nine.\nRelevant:",
    ],
    "labels": [" yes", " no"],
    "apply_softmax": True,
}


async def answer_call(request: Request, service: Service, sender: Sender, path: str) -> Response:
    """Receive a call, submit it, wait for it, and answer with its scores or with the error. path: what it is a call of.

    The body is released before the wait, which may last for minutes. But documents that are returned are as large as
    the body, so it counts in the budget as long as they are kept.
    """
    async with received_body(request, service.reading.limits, service.threads) as data:
        call = await service.bodies.read(request, sender.principal.tenant, read_call, data, sender, path)
        del data
        if call.ranking is not None and call.ranking.documents is not None:
            return await _answer(request, service, call)
    return await _answer(request, service, call)


async def _answer(request: Request, service: Service, call: Call) -> Response:
    place, submission = place_of(request), call.submission
    expected = expected_bytes(submission, submission.total_items, _targets_to_show(submission) or 0)
    # An answer for which there is no room is refused before it is computed. That there is room now promises nothing.
    place.check_answer(expected)
    await service.acceptance.doors.of(submission).admission.admit_call(submission, call.timeout)
    # With an Idempotency-Key its client may come back for it.
    departure = departure_of(request) if submission.idempotency is None else None
    encode = await _encoder(service, call)  # before anything is stored: its model may have been changed just now
    await check_again(request, service.callers)
    accepted = await service.acceptance.acceptor.accept(submission, departure)
    headers = REPLAYED if accepted.replayed else {}
    read: _Read | None = None
    if submission.total_items == 0 or accepted.replayed:
        read = await service.threads.sql_of(submission.tenant, _result_if_ended, service, call, accepted.job_id)
    if read is None:
        ended = await _wait(request, service, call, accepted)
        if isinstance(ended, CallResult):
            service.metrics.count_ended(accepted.job_id, JobStatus.SUCCEEDED)
            scored = ScoredJob.noticed(submission, accepted.job_id, ended)
            scored = await _with_provenance(service, call, scored, (ended.provenance,))
            place.reserve_answer(expected)
            return json_response(
                encode(scored) if _is_small(call) else await service.threads.text_of(submission.tenant, encode, scored),
                headers=headers,
            )
        read = ended
    page = read.page
    if page is not None:
        place.reserve_answer(expected)
        scored = await _with_provenance(service, call, ScoredJob.read(page), page.provenances)
        return json_response(await service.threads.text_of(submission.tenant, encode, scored), headers=headers)
    return error_response(_reason(read, call), {**headers, "Location": job_path(read.job.id)})


async def _encoder(service: Service, call: Call) -> Callable[[ScoredJob], bytes]:
    """Return what makes the answer of a call of its scores. Raises RequestError."""
    encode: Callable[[ScoredJob], bytes] = encode_scoring
    if call.ranking is not None:
        encode = partial(encode_ranking, ranking=call.ranking)
    elif call.submission.options.shape is Shape.COMPLETION:
        # Found now, because another version may take the model's place before the answer is there.
        entry = service.reading.models.entry_of(call.submission)
        encode = partial(encode_completion, tokenizer=(await service.bodies.loader.loaded(entry)).tokenizer)
    if call.submission.options.artefact is None:
        return encode

    def count_and_encode(scored: ScoredJob) -> bytes:
        service.results.counts.count(scored.computed, scored.id, scored.finished_at)
        return encode(scored)

    return count_and_encode


class _Read(NamedTuple):
    """The job of a call, as it was read when nothing was waited for any more."""

    job: JobRecord
    page: ScorePage | None
    outcome: WaitOutcome = WaitOutcome.ENDED
    is_given_up: bool = False  # whether the call itself has cancelled its job, unless that had ended


async def _with_provenance(service: Service, call: Call, scored: ScoredJob, ids: Sequence[int | None]) -> ScoredJob:
    """Return scores with what computed them, if the call asks for it."""
    if not scored.job.options.needs_provenance:
        return scored
    found = await service.results.find_provenance(call.submission.tenant, ids)
    return replace(scored, provenance=found, receipt_keys=service.receipt_keys)


def _is_small(call: Call) -> bool:
    """Return whether to encode what a notice can bring takes less than it takes to hand it to a thread."""
    options = call.submission.options
    # The text of each token is looked up, a digest is taken, or scores are calibrated and counted.
    if options.shape is Shape.COMPLETION or options.receipt is not None or options.artefact is not None:
        return False
    # The notice has the score of each label once, and any number of items may name it any number of times.
    if call.submission.item_labels is not None or call.ranking is None:
        return call.submission.item_labels is None
    return call.ranking.documents is None and call.submission.total_items <= SMALL_RANKING


def _result_if_ended(service: Service, call: Call, job_id: str) -> _Read | None:
    """Return the result of a job that may have ended with its acceptance or earlier: nobody announces that again."""
    job, page = service.results.read(get_job(service.store.database, call.submission.tenant, job_id))
    return _Read(job, page) if job.status.ended else None


async def _wait(request: Request, service: Service, call: Call, accepted: Accepted) -> CallResult | _Read:
    """Wait until the job has ended, the time is over, or the process shuts down.

    Returns the result of the job if the notice brought it, otherwise the job as it was read. Gives up the job if its
    time is over, and the call asks for that. Raises ClientDisconnect. A client that has gone, or that is asked to send
    its request again, finds its job only by its Idempotency-Key. Without one the job is given up: its repetition would
    be another job.
    """
    submission, job_id = call.submission, accepted.job_id
    loop = asyncio.get_running_loop()
    deadline = loop.time() + call.timeout
    while True:
        waited = await service.waiters.wait(job_id, deadline - loop.time(), departure_of(request), needs_end=True)
        if waited.outcome is WaitOutcome.DISCONNECTED:
            if submission.idempotency is None:
                job = await service.store.of(submission.tenant, cancel, job_id)
                service.metrics.count_ended(job.id, job.status)
            raise ClientDisconnect
        is_over = waited.outcome in (WaitOutcome.TIMED_OUT, WaitOutcome.STOPPED)
        if is_over and _is_to_be_given_up(call, waited.outcome):
            job, page = await service.threads.sql_of(submission.tenant, _give_up, service, call, job_id)
            return _Read(job, page, waited.outcome, is_given_up=True)
        noticed = _result_in_notice(call, accepted, waited.result)
        if noticed is not None:
            return noticed
        values = submission.total_items * len(submission.label_token_ids) + (_targets_to_show(submission) or 0)
        job, page = await service.results.shared(submission.tenant, job_id, values)
        if job.status.ended or is_over:
            service.metrics.count_ended(job.id, job.status)
            return _Read(job, page, waited.outcome)
        service.waiters.keep_waiting_for(job_id)  # The notice was wrong.


def _result_in_notice(call: Call, accepted: Accepted, text: str | None) -> CallResult | None:
    """Return the result that a notice brought, if it was signed with the key of this call."""
    submission = call.submission
    if text is None or submission.notice_key is None or accepted.replayed:  # The key of a replayed call is another.
        return None
    return verified_result(
        text,
        submission.notice_key,
        items=submission.total_items,
        labels=len(submission.label_token_ids),
        head=submission.options.head,
        targets=_targets_to_show(submission),
        top=submission.options.top,
    )


def _targets_to_show(submission: Submission) -> int | None:
    """Return the number of targets whose scores the answer needs; None if it needs none."""
    if not submission.options.needs_targets:
        return None
    return sum(len(chunk.continuations.tokens) for chunk in submission.chunks if chunk.continuations is not None)


def _is_to_be_given_up(call: Call, outcome: WaitOutcome) -> bool:
    """Return whether the job of a call is cancelled when it has not ended in time."""
    return call.cancel_on_timeout if outcome is WaitOutcome.TIMED_OUT else call.submission.idempotency is None


def _give_up(service: Service, call: Call, job_id: str) -> JobResult:
    return service.results.read(cancel(service.store.database, call.submission.tenant, job_id))


def _reason(read: _Read, call: Call) -> RequestError:
    """Return the error of a call whose job has not succeeded."""
    job = read.job
    match job.status:
        case JobStatus.FAILED if job.error is not None:
            return RequestError(job.error.code, f"{job.error.message} ({job.id})", job_id=job.id)
        case JobStatus.CANCELLED if not read.is_given_up:
            return RequestError(ErrorCode.JOB_CANCELLED, f"{job.id} was cancelled", job_id=job.id)
        case JobStatus.CANCELLED if read.outcome is WaitOutcome.STOPPED:
            return _stopping(job, f"{job.id} was given up; please send the request again")
        case JobStatus.CANCELLED | JobStatus.EXPIRED:
            message = f"not scored within {call.timeout:g} s; {job.id} was given up"
            return RequestError(ErrorCode.TIMEOUT, message, job_id=job.id)
    if read.outcome is WaitOutcome.STOPPED:
        return _stopping(job, f"{job.id} goes on, and the same request finds it")
    return RequestError(ErrorCode.TIMEOUT, f"not scored within {call.timeout:g} s; {job.id} goes on", job_id=job.id)


def _stopping(job: JobRecord, then: str) -> RequestError:
    message = f"this server stops; {then}"
    return RequestError(ErrorCode.SERVER_STOPPING, message, retry_after=STOP_RETRY_SECONDS, job_id=job.id)
