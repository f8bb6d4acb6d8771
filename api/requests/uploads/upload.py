"""Receive a job as JSON lines (``POST /v1/jobs`` with ``application/x-ndjson``), and stage its chunks meanwhile.

Memory is bounded by a batch of items and the chunks of one transaction, whatever the client sends. The event loop waits
for the bytes, so a slow client occupies neither a thread nor a connection to the database. An upload that fails in any
way leaves no job behind.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import structlog
from starlette.requests import Request

from api.callers.admission import Admission
from api.callers.storage_quota import check_stored_bytes
from api.principal import check_again
from api.requests.bodies.receiving import check_declared_length, content_encoding
from api.requests.sender import Sender
from api.requests.uploads.upload_body import UploadBody
from api.requests.uploads.upload_reader import UploadReader
from api.requests.webhook import with_warning_of_disabled_endpoint
from api.service import Service
from jobs.queue.idempotency import check_earlier
from jobs.queue.read import get_job
from jobs.queue.upload import EarlierUpload, Upload, accept_upload, begin_upload, remove_upload, stage
from jobs.store.database import StorageUnavailable
from jobs.store.records import Accepted, JobRecord, Submission
from scoring.chunk import Chunk
from telemetry.tracing import current_traceparent

JSON_LINES = "application/x-ndjson"

STAGE_CHUNKS = 64
STAGE_TOKENS = 2**20
"""The chunks, and the tokens of their rows, that one transaction stages: about four megabytes."""

log = structlog.stdlib.get_logger("api.upload")


async def receive_upload(request: Request, service: Service, sender: Sender) -> tuple[Accepted, JobRecord]:
    """Receive and accept a job.

    Raises RequestError, StorageUnavailable and ClientDisconnect, possibly in the middle of the body.
    """
    check_declared_length(request, service.reading.limits, "max_upload_bytes")
    reader = UploadReader(service.reading, sender, encoding=content_encoding(request))
    body = UploadBody(request, service.reading.limits, service.store.database.settings.upload_timeout_seconds)
    return await _Receiver(service, sender, reader, body, partial(check_again, request, service.callers)).receive()


class _Receiver:
    """Receives one upload and stores it."""

    def __init__(
        self,
        service: Service,
        sender: Sender,
        reader: UploadReader,
        body: UploadBody,
        check_caller: Callable[[], Awaitable[None]],
    ) -> None:
        self._service = service
        self._check_caller = check_caller
        self._tenant = sender.principal.tenant
        self._key = sender.idempotency_key
        self._reader = reader
        self._body = body
        self._upload: Upload | None = None
        self._earlier: EarlierUpload | None = None
        self._admission: Admission | None = None  # of the model, once the first chunks are stored
        self._chunks: list[Chunk] = []
        self._tokens = 0
        self._staged_bytes = 0
        self._staged_at = time.monotonic()

    async def receive(self) -> tuple[Accepted, JobRecord]:
        try:
            async for data in self._body.pieces(self._stage):
                await self._read(self._reader.feed(data))
            await self._read(self._reader.finish())
            accepted = await self._accept()
            assert self._reader.submission is not None
            self._service.acceptance.acceptor.announce(self._reader.submission, accepted)
            job = await self._service.store.of(self._tenant, get_job, accepted.job_id)
            if not accepted.replayed:
                self._service.metrics.count_uploaded(job)
            return accepted, job
        except BaseException:
            await self._give_up()
            raise

    async def _read(self, steps: Iterator[list[Chunk]]) -> None:
        """Take what the steps of the reader yield. Its first line may name a model that has to be loaded."""
        in_thread, tenant, reader = self._service.threads.text_of, self._tenant, self._reader
        while (chunks := await in_thread(tenant, next, steps, None)) is not None:
            if reader.first_line is not None:
                await self._service.bodies.loader.reading(lambda: in_thread(tenant, reader.open))
            await self._take(chunks)

    async def _take(self, chunks: list[Chunk]) -> None:
        if self._upload is None and self._earlier is None and self._reader.submission is not None:
            await self._begin()
        if self._earlier is not None:
            return
        self._chunks += chunks
        self._tokens += sum(chunk.tokens for chunk in chunks)
        due = time.monotonic() - self._staged_at >= self._body.heartbeat_seconds
        if due or len(self._chunks) >= STAGE_CHUNKS or self._tokens >= STAGE_TOKENS:
            await self._stage()

    async def _begin(self) -> None:
        assert self._reader.submission is not None
        submission = replace(self._reader.submission, traceparent=current_traceparent())
        await self._check_caller()
        begun = await self._service.threads.sql_of(self._tenant, _begin_upload, self._service, submission, self._key)
        if isinstance(begun, EarlierUpload):
            # The job exists already. Of this body only the hash is needed, which must be that of the earlier body.
            self._earlier = begun
            self._reader.hash_only = True
        else:
            self._upload = begun

    async def _stage(self) -> None:
        """Store the chunks that are complete. Without any, only renew the upload's heartbeat."""
        self._staged_at = time.monotonic()
        chunks, self._chunks, self._tokens = self._chunks, [], 0
        if self._upload is not None:
            await self._check_caller()
            first = self._admission is None
            # The model may get another version meanwhile: the upload goes on for the version that it began with.
            admission = self._admission or self._service.acceptance.doors.of(self._upload.submission).admission
            self._admission = admission if chunks else self._admission
            self._staged_bytes += self._upload.submission.bytes_of(chunks)
            await self._service.threads.sql_of(
                self._tenant,
                _check_and_stage,
                self._service,
                admission,
                self._upload,
                chunks,
                first=first,
                staged_bytes=self._staged_bytes,
            )

    async def _accept(self) -> Accepted:
        body_hash = self._reader.body_hash
        if self._earlier is not None:
            assert self._key is not None
            check_earlier(self._key, body_hash, self._earlier.body_hash)
            return Accepted(self._earlier.job_id, replayed=True)
        if self._chunks:
            await self._stage()
        assert self._upload is not None
        await self._check_caller()
        await self._service.store.in_turn(self._tenant, accept_upload, self._upload, body_hash)
        return Accepted(self._upload.job_id, replayed=False)

    async def _give_up(self) -> None:
        """Remove the upload. If the database is unavailable now, a sweep will remove it."""
        if self._upload is None:
            return
        try:
            await self._service.store.in_turn(self._tenant, remove_upload, self._upload.job_id)
        except StorageUnavailable as error:
            log.warning("could not remove an upload", job_id=self._upload.job_id, error=str(error))


def _begin_upload(service: Service, submission: Submission, key: str | None) -> Upload | EarlierUpload:
    submission = with_warning_of_disabled_endpoint(service.store.database, submission)
    return begin_upload(service.store.database, submission, key)


def _check_and_stage(
    service: Service,
    admission: Admission,
    upload: Upload,
    chunks: Sequence[Chunk],
    *,
    first: bool,
    staged_bytes: int,
) -> None:
    """Stage chunks if there is room for them. staged_bytes: what the upload will take with them, once it is scored."""
    submission, quota = upload.submission, service.acceptance.storage_quota
    if chunks:
        check_stored_bytes(staged_bytes, quota.most)
        if first:
            admission.admit_upload(submission)
            admission.refuse_other_weights(submission)
        else:
            admission.admit_part(submission.tenant)
        quota.take(submission.tenant, submission.bytes_of(chunks))
    stage(service.store.database, upload, chunks)
