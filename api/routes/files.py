"""``/v1/files``: upload, list, read and delete files, as OpenAI's interface has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response, StreamingResponse

from api.answers.batches import show_file, show_list
from api.answers.error_responses import secured
from api.answers.openapi import BodySchema
from api.answers.presentation import json_response
from api.answers.schemas.file import DeletedFile, File, FileBody, FileList
from api.budget import Kind, counts_as
from api.principal import WithReadScope, WithScoreScope
from api.request_id import BrokenOffError
from api.requests.headers.idempotency import REPLAYED, IdempotencyKey
from api.requests.ids import FILE_ID, checked_file_id
from api.requests.uploads.file_upload import receive_file
from api.service import ServiceOf, StoreOf
from api.store import Store
from jobs.file_batches.reading import FILE_IN_USE
from jobs.files.reading import get_file, list_files, read_part
from jobs.files.removal import delete_file
from jobs.files.tables import Purpose
from jobs.store.database import StorageUnavailable
from scoring.error_codes import ErrorCode, RequestError

MAX_LIMIT = 10_000
"""The most files of a page, and how many it has unless told otherwise."""

CONTENT = "application/octet-stream"

FORM = BodySchema(
    "multipart/form-data",
    [FileBody],
    example='--line\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    '--line\r\nContent-Disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r\n'
    '{"custom_id": "a", "method": "POST", "url": "/v1/score", "body": {"query": "Review: ", "items": '
    '["A lovely room."], "labels": [" positive", " negative"]}}\r\n--line--\r\n',
)

router = APIRouter(tags=["files and batches"])


@router.post(
    "/v1/files",
    dependencies=[Depends(counts_as(Kind.UPLOAD))],
    response_model=File,
    responses=secured(
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        ErrorCode.REQUEST_TOO_LARGE,
        ErrorCode.QUOTA_EXCEEDED,
        ErrorCode.FILE_NOT_FOUND,
        ErrorCode.IDEMPOTENCY_KEY_REUSED,
        ErrorCode.IDEMPOTENCY_IN_PROGRESS,
    ),
    openapi_extra=FORM,
)
async def upload(
    request: Request, service: ServiceOf, principal: WithScoreScope, idempotency_key: IdempotencyKey = None
) -> Response:
    """Upload a file of JSON lines for a batch.

    It is a form with the fields `purpose` (`batch`) and `file`, and `expires_after[anchor]` (`created_at`) and
    `expires_after[seconds]` if it is to expire earlier than others.
    """
    file, is_replayed = await receive_file(request, service, principal.tenant, idempotency_key)
    return json_response(show_file(file), headers=REPLAYED if is_replayed else {})


@router.get("/v1/files", response_model=FileList, responses=secured(ErrorCode.INVALID_REQUEST))
async def list_(
    store: StoreOf,
    principal: WithReadScope,
    purpose: Literal["batch", "batch_output"] | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = MAX_LIMIT,
    after: Annotated[
        str | None, Query(pattern=FILE_ID, description="the id of the last file of the page before")
    ] = None,
    order: Annotated[Literal["asc", "desc"], Query(description="by the time of creation")] = "desc",
) -> Response:
    """List files, newest first unless told otherwise."""
    found = await store.of(
        principal.tenant,
        list_files,
        purpose=None if purpose is None else Purpose(purpose),
        limit=limit + 1,
        after=after,
        oldest_first=order == "asc",
    )
    return json_response(show_list([show_file(file) for file in found], limit))


@router.get("/v1/files/{file_id}", response_model=File, responses=secured(ErrorCode.FILE_NOT_FOUND))
async def read(file_id: str, store: StoreOf, principal: WithReadScope) -> Response:
    """Read what a file is."""
    file = await store.of(principal.tenant, get_file, checked_file_id(file_id))
    return json_response(show_file(file))


@router.get(
    "/v1/files/{file_id}/content",
    dependencies=[Depends(counts_as(Kind.STREAM))],
    response_class=StreamingResponse,
    responses={
        200: {"description": "the bytes of the file", "content": {CONTENT: {"schema": {"type": "string"}}}},
        **secured(ErrorCode.FILE_NOT_FOUND),
    },
)
async def content(file_id: str, store: StoreOf, principal: WithReadScope) -> Response:
    """Read the bytes of a file."""
    file = await store.of(principal.tenant, get_file, checked_file_id(file_id))
    headers = {
        "Content-Length": str(file.bytes),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.filename)}",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(_parts(store, principal.tenant, file_id, file.bytes), media_type=CONTENT, headers=headers)


@router.delete(
    "/v1/files/{file_id}",
    response_model=DeletedFile,
    responses=secured(ErrorCode.FILE_NOT_FOUND, ErrorCode.FILE_IN_USE),
)
async def delete_(file_id: str, store: StoreOf, principal: WithScoreScope) -> Response:
    """Delete a file. One that a batch reads, which has not ended, is kept."""
    await store.of(principal.tenant, delete_file, checked_file_id(file_id), FILE_IN_USE)
    return json_response({"id": file_id, "object": "file", "deleted": True})


async def _parts(store: Store, tenant: str, file_id: str, size: int) -> AsyncIterator[bytes]:
    """Yield the parts of a file, one at a time. Raises BrokenOffError if one can't be read, as after a deletion."""
    start = 0
    try:
        while start < size:
            part = await store.of(tenant, read_part, file_id, start)
            if part is None:
                raise BrokenOffError("a part of the file is missing")
            start += len(part)
            yield part
    except (RequestError, StorageUnavailable) as error:
        raise BrokenOffError(str(error)) from error
