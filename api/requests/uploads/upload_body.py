"""Receive the body of an upload in pieces, and give up an upload whose client keeps the server waiting.

A client may be silent for a while, because it makes its items as it goes. But it must not keep one of the few places
for uploads by a byte now and then. So the time that the server has spent waiting for its bytes is added up, and may not
exceed a fixed time and some more for each byte that has come. The time that the server itself needs, for tokenizing and
for the database, does not count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.requests import ClientDisconnect, Request

from scoring.error_codes import ErrorCode, RequestError
from settings.limits import LimitSettings

HEARTBEATS = 4
"""The number of heartbeats in the time after which an upload counts as abandoned."""

GATHERED_BYTES = 2**16
GATHER_SECONDS = 0.02
"""Small pieces are gathered up to this size or for this time: handling a piece costs two changes of the thread."""


class UploadBody:
    """The body of an upload."""

    def __init__(self, request: Request, limits: LimitSettings, silent_seconds: float) -> None:
        self._request = request
        self._limits = limits
        self._silent_seconds = silent_seconds
        self.heartbeat_seconds = silent_seconds / HEARTBEATS
        self._ended = False  # whether all bytes were received
        self._received_bytes = 0
        self._waited_seconds = 0.0  # for all bytes so far

    async def pieces(self, heartbeat: Callable[[], Awaitable[None]]) -> AsyncIterator[bytes]:
        """Yield the bytes as they arrive, and call ``heartbeat`` regularly while none arrive.

        Raises ClientDisconnect; RequestError REQUEST_TIMEOUT when nothing has arrived for the time after which an
        upload counts as silent, or when the server has waited too long in all.
        """
        while not self._ended:
            asked_at = time.monotonic()
            piece: bytes | None = await self._first_piece(heartbeat)
            until = time.monotonic() + GATHER_SECONDS
            gathered = bytearray()
            while piece is not None:
                gathered += piece
                piece = None
                if not self._ended and len(gathered) < GATHERED_BYTES:
                    piece = await self._piece(until)
            self._waited_seconds += time.monotonic() - asked_at
            self._received_bytes += len(gathered)
            if gathered:
                yield bytes(gathered)

    async def _first_piece(self, heartbeat: Callable[[], Awaitable[None]]) -> bytes:
        """Return the next piece, however long it takes within the limits."""
        allowed = self._limits.upload_seconds + self._received_bytes / self._limits.upload_bytes_per_second
        now = time.monotonic()
        silent_at = now + self._silent_seconds
        too_slow_at = now + allowed - self._waited_seconds
        beat_at = now + self.heartbeat_seconds
        while (piece := await self._piece(min(silent_at, too_slow_at, beat_at))) is None:
            now = time.monotonic()
            if now >= silent_at:
                message = f"nothing came for {self._silent_seconds:g} s: the upload is given up"
                raise RequestError(ErrorCode.REQUEST_TIMEOUT, message, limit="upload_timeout_seconds")
            if now >= too_slow_at:
                message = f"the server has waited {allowed:.1f} s for the bytes of this upload: it is given up"
                raise RequestError(ErrorCode.REQUEST_TIMEOUT, message, limit="upload_seconds")
            if now >= beat_at:
                await heartbeat()
                beat_at = time.monotonic() + self.heartbeat_seconds
        return piece

    async def _piece(self, until: float) -> bytes | None:
        """Return the next piece; None if none arrives until this time. Raises ClientDisconnect."""
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                message = await self._request.receive()
        except TimeoutError:
            return None
        if message["type"] == "http.disconnect":
            self._ended = True
            raise ClientDisconnect
        self._ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece
