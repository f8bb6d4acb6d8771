"""``/v1/batches``: answer the requests in a file, by OpenAI's interface."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers.batches import show_batch, show_list
from api.answers.error_responses import secured
from api.answers.openapi import json_body
from api.answers.presentation import json_response
from api.answers.schemas.batch import Batch, BatchBody, BatchList, DeletedBatch
from api.principal import WithReadScope, WithScoreScope, check_again
from api.requests.batch import read_batch
from api.requests.bodies.receiving import received_body
from api.requests.headers.idempotency import REPLAYED, IdempotencyKey
from api.requests.headers.prefer import Handling, is_strict
from api.requests.ids import BATCH_ID, checked_batch_id
from api.requests.sender import Sender
from api.service import ServiceOf, StoreOf
from jobs.file_batches.creating import cancel_batch, create_batch
from jobs.file_batches.reading import get_batch, list_batches
from jobs.file_batches.removal import delete_batch
from scoring.error_codes import ErrorCode

EXAMPLE = {
    "input_file_id": "file_0198c0de00007000800000000000000a",
    "endpoint": "/v1/score",
    "completion_window": "24h",
    "metadata": {"run": "7"},
}

router = APIRouter(tags=["files and batches"])


@router.post(
    "/v1/batches",
    response_model=Batch,
    responses=secured(
        ErrorCode.INVALID_JSON,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_FILE,
        ErrorCode.UNSUPPORTED_PARAMETER,
        ErrorCode.UNKNOWN_PARAMETER,
        ErrorCode.WEBHOOK_URL_FORBIDDEN,
        ErrorCode.FILE_NOT_FOUND,
        ErrorCode.BATCH_NOT_FOUND,
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        ErrorCode.REQUEST_TOO_LARGE,
        ErrorCode.QUOTA_EXCEEDED,
        ErrorCode.IDEMPOTENCY_KEY_REUSED,
    ),
    openapi_extra=json_body(BatchBody, examples=[EXAMPLE]),
)
async def create(
    request: Request,
    service: ServiceOf,
    principal: WithScoreScope,
    idempotency_key: IdempotencyKey = None,
    handling: Handling = None,
) -> Response:
    """Have the requests in a file answered. With the 200 the batch is committed: nothing of it is lost afterwards.

    Each line is `{"custom_id", "method": "POST", "url", "body"}`; `url` is the endpoint of the batch. The answers come
    as files, in the order of the lines. A line that is wrong goes to the error file, and the others are scored.
    """
    async with received_body(request, service.reading.limits, service.threads) as data:
        sender = Sender(principal, idempotency_key, is_strict(request, handling))
        wanted, warnings = await service.bodies.read(request, principal.tenant, read_batch, data, sender)
    limits = service.reading.limits
    no_room = await service.threads.sql_of(principal.tenant, service.acceptance.storage_quota.refusal, principal.tenant)
    await check_again(request, service.callers)
    batch, is_replayed = await service.store.in_turn(
        principal.tenant,
        create_batch,
        wanted,
        limits.max_open_batches_per_tenant,
        limits.max_files_per_tenant,
        no_room,
    )
    return json_response(show_batch(batch, warnings), headers=REPLAYED if is_replayed else {})


@router.get("/v1/batches", response_model=BatchList, responses=secured(ErrorCode.INVALID_REQUEST))
async def list_(
    store: StoreOf,
    principal: WithReadScope,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[
        str | None, Query(pattern=BATCH_ID, description="the id of the last batch of the page before")
    ] = None,
) -> Response:
    """List batches, newest first."""
    found = await store.of(principal.tenant, list_batches, limit=limit + 1, after=after)
    return json_response(show_list([show_batch(batch) for batch in found], limit))


@router.get("/v1/batches/{batch_id}", response_model=Batch, responses=secured(ErrorCode.BATCH_NOT_FOUND))
async def read(batch_id: str, store: StoreOf, principal: WithReadScope) -> Response:
    """Read a batch."""
    batch = await store.of(principal.tenant, get_batch, checked_batch_id(batch_id))
    return json_response(show_batch(batch))


@router.post("/v1/batches/{batch_id}/cancel", response_model=Batch, responses=secured(ErrorCode.BATCH_NOT_FOUND))
async def cancel(batch_id: str, store: StoreOf, principal: WithScoreScope) -> Response:
    """Cancel a batch. What was scored is written; all other lines go to the error file. One that has ended stays as it
    is, so cancelling twice is safe.
    """
    batch = await store.of(principal.tenant, cancel_batch, checked_batch_id(batch_id))
    return json_response(show_batch(batch))


@router.delete("/v1/batches/{batch_id}", response_model=DeletedBatch, responses=secured(ErrorCode.BATCH_NOT_FOUND))
async def delete(batch_id: str, store: StoreOf, principal: WithScoreScope) -> Response:
    """Delete a batch with its files, its jobs and their scores. One that has not ended is cancelled first. An input
    file that another batch has stays.
    """
    batch_id = checked_batch_id(batch_id)
    await store.of(principal.tenant, delete_batch, batch_id)
    return json_response({"id": batch_id, "object": "batch", "deleted": True})
