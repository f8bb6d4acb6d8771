"""Receiving a job as JSON lines (``POST /v1/jobs`` with ``application/x-ndjson``): staged while it comes.

Memory is bounded by a batch of items and the chunks of one transaction, whatever is sent and however fast. Bytes are
awaited on the event loop, so a slow client holds no thread and no connection to the database. What fails, in whichever
way, leaves no job behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.answers.error_responses import error_response, storage_unavailable
from api.callers.authentication import Principal
from api.requests.body import check_declared_length, content_encoding
from api.requests.upload_reader import Part, UploadReader
from api.requests.webhook import with_warning_of_disabled_endpoint
from api.service import Service
from jobs.queue.accept import key_reused
from jobs.queue.read import get_job
from jobs.queue.upload import EarlierUpload, Upload, accept_upload, begin_upload, remove_upload, stage
from jobs.store.database import StorageUnavailable
from jobs.store.records import Accepted, JobRecord, Submission
from scoring.error_codes import ErrorCode, RequestError

JSON_LINES = "application/x-ndjson"

STAGE_CHUNKS = 64
STAGE_TOKENS = 2**20
"""Chunks, and tokens of their rows, that one transaction stages: about four megabytes."""

BEATS = 4
"""So many signs of life in the time after which an upload counts as abandoned."""

LINGER_SECONDS = 2.0
"""A client may read its answer only when it has sent all. For so long what it sends after an error is thrown away; were
the connection closed at once, it might lose the answer."""

log = structlog.stdlib.get_logger("api.upload")


async def receive_upload(
    request: Request, service: Service, principal: Principal, key: str | None
) -> tuple[Accepted, JobRecord]:
    """Take in a job. key: the request's Idempotency-Key.

    Raises UploadRefusedError, ClientDisconnect.
    """
    body = _Body(request)
    try:
        check_declared_length(request, service.api.max_upload_bytes)
        encoding = content_encoding(request)
        if encoding not in ("identity", "gzip", "x-gzip"):
            raise RequestError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send JSON lines plain or as gzip")
        return await _Receiver(service, principal, key, packed=encoding != "identity").receive(body)
    except RequestError as error:
        raise UploadRefusedError(error, body) from error
    except StorageUnavailable as error:
        raise UploadRefusedError(storage_unavailable(), body) from error


class _Receiver:
    """One upload on its way into the store."""

    def __init__(self, service: Service, principal: Principal, key: str | None, *, packed: bool) -> None:
        self._service = service
        self._principal = principal
        self._key = key
        self._reader = UploadReader(service, principal, packed=packed)
        self._upload: Upload | None = None
        self._earlier: EarlierUpload | None = None
        self._admitted = False
        self._parts: list[Part] = []
        self._tokens = 0
        self._silent_seconds = service.database.settings.upload_timeout_seconds
        self._beat_at = time.monotonic()

    async def receive(self, body: _Body) -> tuple[Accepted, JobRecord]:
        try:
            async for data in body.pieces(self._silent_seconds, self._silent_seconds / BEATS, self._stage):
                steps = self._reader.feed(data)
                while (parts := await self._service.threads.text(next, steps, None)) is not None:
                    await self._take(parts)
            await self._take(await self._service.threads.text(self._reader.finish))
            accepted = await self._accept()
            mine = self._service.database, self._principal.tenant
            return accepted, await self._service.threads.sql(get_job, *mine, accepted.job_id)
        except BaseException:
            await self._give_up()
            raise

    async def _take(self, parts: list[Part]) -> None:
        if self._upload is None and self._earlier is None and self._reader.submission is not None:
            await self._begin()
        if self._earlier is not None:
            return
        self._parts += parts
        self._tokens += sum(len(rows.tokens) for _, rows in parts)
        due = time.monotonic() - self._beat_at >= self._silent_seconds / BEATS
        if due or len(self._parts) >= STAGE_CHUNKS or self._tokens >= STAGE_TOKENS:
            await self._stage()

    async def _begin(self) -> None:
        assert self._reader.submission is not None
        begun = await self._service.threads.sql(_begin_upload, self._service, self._reader.submission, self._key)
        if isinstance(begun, EarlierUpload):
            # It must be the same body then, or it is refused; nothing else of it is of interest.
            self._earlier = begun
            self._reader.skims = True
        else:
            self._upload = begun

    async def _stage(self) -> None:
        """Store what there is; without anything, say that the upload is alive."""
        self._beat_at = time.monotonic()
        parts, self._parts, self._tokens = self._parts, [], 0
        if self._upload is not None:
            first, self._admitted = not self._admitted, self._admitted or bool(parts)
            await self._service.threads.sql(_check_and_stage, self._service, self._upload, parts, first=first)

    async def _accept(self) -> Accepted:
        body_hash = self._reader.body_hash
        if self._earlier is not None:
            if self._earlier.body_hash != body_hash:
                assert self._key is not None
                raise key_reused(self._key)
            return Accepted(self._earlier.job_id, replayed=True)
        if self._parts:
            await self._stage()
        assert self._upload is not None
        await self._service.threads.sql(accept_upload, self._service.database, self._upload, body_hash)
        self._service.metrics.accepted(self._upload.submission)
        return Accepted(self._upload.job_id, replayed=False)

    async def _give_up(self) -> None:
        """Leave nothing behind. What can't be removed now, because the database is away, the sweep removes."""
        if self._upload is None:
            return
        try:
            await self._service.threads.sql(remove_upload, self._service.database, self._upload.job_id)
        except StorageUnavailable as error:
            log.warning("could not remove an upload", job_id=self._upload.job_id, error=str(error))


def _begin_upload(service: Service, submission: Submission, key: str | None) -> Upload | EarlierUpload:
    submission = with_warning_of_disabled_endpoint(service.database, submission)
    return begin_upload(service.database, submission, key)


def _check_and_stage(service: Service, upload: Upload, parts: Sequence[Part], *, first: bool) -> None:
    if parts and first:
        service.admission.admit_upload()
    elif parts:
        service.handshake.check(waits=True)
    stage(service.database, upload, parts)


class _Body:
    """The pieces of a request's body. ended: there are no more of them."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.ended = False

    async def pieces(
        self, silent_seconds: float, beat_seconds: float, beat: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[bytes]:
        """The bytes as they come. ``beat`` is called again and again while they don't.

        Raises ClientDisconnect; RequestError TIMEOUT when nothing has come for ``silent_seconds``.
        """
        heard_at = time.monotonic()
        while not self.ended:
            receiving = asyncio.ensure_future(self._request.receive())
            try:
                while not (await asyncio.wait({receiving}, timeout=beat_seconds))[0]:
                    if time.monotonic() - heard_at >= silent_seconds:
                        raise RequestError(ErrorCode.TIMEOUT, f"nothing came for {silent_seconds:g} s: given up")
                    await beat()
            finally:
                receiving.cancel()
            message = receiving.result()
            if message["type"] == "http.disconnect":
                self.ended = True
                raise ClientDisconnect
            heard_at = time.monotonic()
            self.ended = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]


class UploadRefusedError(Exception):
    """An upload that failed, perhaps in the middle of its body. ``response`` is the answer."""

    def __init__(self, error: RequestError, body: _Body) -> None:
        super().__init__(error.message)
        self._error = error
        self._body = body

    @property
    def response(self) -> Response:
        """The error's envelope."""
        if self._body.ended:
            return error_response(self._error)
        response = error_response(self._error, {"Connection": "close"})
        # Who fell silent sends nothing that could be thrown away.
        return response if self._error.code is ErrorCode.TIMEOUT else _LingeringResponse(response)


class _LingeringResponse(Response):
    """An answer to a request of which not all was read, sent at once; the connection is closed a moment later."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.body, response.status_code, dict(response.headers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})
