"""Receive a file (``POST /v1/files``), and stage its bytes in the database meanwhile.

The memory that this takes does not depend on the size of the file. A file that fails in any way leaves nothing behind.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from api.callers.storage_quota import StorageQuota
from api.principal import check_again
from api.requests.bodies.receiving import declared_length
from api.requests.uploads.file_form import FORM_BYTES, FileForm, too_large
from api.requests.uploads.upload_body import UploadBody
from api.service import Service
from jobs.files.reading import FileRecord, get_file
from jobs.files.receiving import (
    EarlierFile,
    ReceivedFile,
    accept_file,
    begin_file,
    give_up_file,
    stage_file,
)
from jobs.files.removal import remove_files
from jobs.files.tables import Purpose, files
from jobs.queue.idempotency import check_earlier
from jobs.store.database import Database, StorageUnavailable
from scoring.error_codes import ErrorCode, RequestError, invalid

STAGE_BYTES = 2**20
"""The bytes that one transaction stores."""

MAX_BOUNDARY = 200

log = structlog.stdlib.get_logger("api.files")


async def receive_file(request: Request, service: Service, tenant: str, key: str | None) -> tuple[FileRecord, bool]:
    """Receive a file. Returns it, and whether an earlier request with the same Idempotency-Key had made it.

    Raises RequestError, StorageUnavailable and ClientDisconnect, possibly in the middle of the body.
    """
    limits = service.reading.limits
    if declared_length(request) > limits.max_file_bytes + FORM_BYTES:
        raise too_large(limits)
    boundary = _boundary(request.headers.get("content-type", ""))
    body = UploadBody(request, limits, service.store.database.settings.upload_timeout_seconds)
    check_caller = partial(check_again, request, service.callers)
    return await _Receiver(service, body, check_caller, tenant, key, boundary).receive()


class _Receiver:
    """Receives one file."""

    def __init__(
        self,
        service: Service,
        body: UploadBody,
        check_caller: Callable[[], Awaitable[None]],
        tenant: str,
        key: str | None,
        boundary: bytes,
    ) -> None:
        self._store = service.store
        self._body = body
        self._check_caller = check_caller
        self._most_files = service.reading.limits.max_files_per_tenant
        self._quota = service.acceptance.storage_quota
        self._tenant = tenant
        self._key = key
        self._form = FileForm(boundary, service.reading.limits)
        self._file: ReceivedFile | None = None
        self._earlier: EarlierFile | None = None
        self._content = bytearray()  # not staged yet
        self._lines = 0
        self._staged_at = time.monotonic()

    async def receive(self) -> tuple[FileRecord, bool]:
        threads = self._store.threads
        try:
            async for data in self._body.pieces(self._stage):
                content, lines = await threads.text_of(self._tenant, self._form.feed, data)
                _purpose(self._form.fields, is_complete=False)
                await self._take(content, lines)
            await self._take(b"", await threads.text_of(self._tenant, self._form.finish))
            purpose = _purpose(self._form.fields, is_complete=True)
            expires_in = _expires_in(self._form.fields, self._store.database.settings.file_retention_seconds)
            body_hash = self._form.body_hash(purpose.value, expires_in)
            if self._earlier is not None:
                assert self._key is not None
                check_earlier(self._key, body_hash, self._earlier.body_hash)
                return await self._store.of(self._tenant, get_file, self._earlier.id), True
            await self._stage()
            assert self._file is not None
            assert self._form.filename is not None
            stored = await self._store.in_turn(
                self._tenant,
                accept_file,
                self._file,
                purpose=purpose,
                filename=self._form.filename,
                expires_in=expires_in,
                body_hash=body_hash,
            )
            return stored, False
        except BaseException:
            await self._give_up()
            raise

    async def _take(self, content: bytes, lines: int) -> None:
        if self._file is None and self._earlier is None and self._form.filename is not None:
            await self._check_caller()
            begun = await self._store.of(self._tenant, begin_file, self._most_files, self._key)
            if isinstance(begun, EarlierFile):
                self._earlier = begun
            else:
                self._file = begun
        if self._earlier is not None:
            return
        self._content += content
        self._lines += lines
        due = time.monotonic() - self._staged_at >= self._body.heartbeat_seconds
        if due or len(self._content) >= STAGE_BYTES:
            await self._stage()

    async def _stage(self) -> None:
        """Store the bytes that have arrived. Without any, only renew the heartbeat."""
        self._staged_at = time.monotonic()
        if self._file is None:
            return
        await self._check_caller()
        content, lines = bytes(self._content), self._lines
        self._content.clear()
        self._lines = 0
        await self._store.in_turn(self._tenant, _check_and_stage, self._quota, self._file, content, lines)

    async def _give_up(self) -> None:
        """Remove what has been stored. If the database is unavailable now, a sweep will remove it."""
        if self._file is None:
            return
        try:
            await self._store.in_turn(self._tenant, _remove, self._file.id)
        except StorageUnavailable as error:
            log.warning("could not remove a file that failed", file_id=self._file.id, error=str(error))


def _check_and_stage(db: Database, quota: StorageQuota, file: ReceivedFile, content: bytes, lines: int) -> None:
    if content:
        quota.take(file.tenant, len(content))
    stage_file(db, file, content, lines)


def _remove(db: Database, file_id: str) -> None:
    give_up_file(db, [file_id])
    while remove_files(db, files.c.id == file_id):
        pass


def _boundary(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data":
        message = "send a file as `Content-Type: multipart/form-data`, with the fields `purpose` and `file`"
        raise RequestError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, message)
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        raise invalid("the media type of a form has a boundary of 1 to 200 characters")
    return boundary


def _purpose(fields: dict[str, str], *, is_complete: bool) -> Purpose:
    """Check the purpose as soon as it is known."""
    given = fields.get("purpose")
    if given is None and is_complete:
        raise invalid('purpose is required: "batch"', "purpose")
    if given not in (None, Purpose.BATCH.value):
        raise invalid('purpose must be "batch"', "purpose")
    return Purpose.BATCH


def _expires_in(fields: dict[str, str], most: float) -> float:
    """Return after how many seconds the file expires."""
    anchor, given = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and given is None:
        return most
    if anchor != "created_at":
        raise invalid('expires_after.anchor must be "created_at"', "expires_after.anchor")
    seconds = int(given) if given is not None and re.fullmatch(r"[0-9]{1,12}", given) else 0
    if not 1 <= seconds <= most:
        raise invalid(f"expires_after.seconds must be a whole number from 1 to {most:g}", "expires_after.seconds")
    return float(seconds)
