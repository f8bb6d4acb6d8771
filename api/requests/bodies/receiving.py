"""Receive the body of a request within the budget and in time, unpack it, and check its size and media type."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from api.budget import Place, place_of
from api.requests.bodies.decompression import PLAIN, Decompressor
from api.threads import Threads
from scoring.error_codes import ErrorCode, RequestError
from settings.limits import LimitSettings

STEP_BYTES = 2**16
"""The bytes of a compressed JSON body that are unpacked at a time, which takes a fraction of a millisecond."""

MAX_MEDIA_TYPE = 1_024
"""The most characters of a media type with its parameters; the boundary of a form may have 70."""


@asynccontextmanager
async def received_body(request: Request, limits: LimitSettings, threads: Threads) -> AsyncIterator[bytes]:
    """Receive a JSON body. Its bytes count in the budget until the block ends, so the block must not keep them.

    A compressed body is unpacked as it comes. Its unpacked bytes are limited and counted as those of a plain one. Only
    the bytes that have come are counted: a client that declares a large body and sends nothing takes no room from
    others. Raises ClientDisconnect, and RequestError UNSUPPORTED_MEDIA_TYPE, REQUEST_TOO_LARGE, REQUEST_TIMEOUT,
    INVALID_REQUEST, TOO_MANY_OPEN_REQUESTS, OVERLOADED.
    """
    _check_media_type(request)
    place = place_of(request)
    unpack = _Unpacking(request, limits, place, threads)
    declared = check_declared_length(request, limits, "max_body_bytes")
    # A body for which there is no room is refused before it is sent. That there is room now promises nothing.
    place.check_body(declared)
    try:
        yield await _receive(request, limits, place, unpack)
    finally:
        place.release_body()


class _Unpacking:
    """Unpacks the pieces of a body, if it is compressed."""

    def __init__(self, request: Request, limits: LimitSettings, place: Place, threads: Threads) -> None:
        encoding = content_encoding(request)
        self._decompressor = None if encoding == PLAIN else Decompressor(encoding, limits, STEP_BYTES)
        self._place = place
        self._threads = threads

    async def pieces(self, piece: bytes) -> AsyncIterator[bytes]:
        """Yield what a piece unpacks to. The first step is done on the event loop, which is all for a small body."""
        if self._decompressor is None:
            yield piece
            return
        steps = self._decompressor.feed(piece)
        data = next(steps, None)
        while data is not None:
            yield data
            data = await self._threads.text_of(self._place.tenant, next, steps, None)

    def finish(self) -> None:
        """Check that the body is complete. Raises RequestError."""
        if self._decompressor is not None:
            self._decompressor.finish()


async def _receive(request: Request, limits: LimitSettings, place: Place, unpack: _Unpacking) -> bytes:
    now = asyncio.get_running_loop().time
    last_moment = now() + limits.body_seconds
    first = b""  # most bodies come in one piece, which is not copied
    received = bytearray()  # of several pieces; a list of them could need far more memory than their bytes
    size = 0
    try:
        async with asyncio.timeout_at(min(now() + limits.body_silence_seconds, last_moment)) as deadline:
            async for sent in request.stream():
                deadline.reschedule(last_moment)  # while it is unpacked, the client is not silent
                async for piece in unpack.pieces(sent):
                    size += len(piece)
                    # The declared length may be missing or that of a compressed body, so what has come is counted, too.
                    if size > limits.max_body_bytes:
                        raise too_large(limits, "max_body_bytes")
                    place.hold_body(len(piece))
                    if size == len(piece):
                        first = piece
                    elif piece:
                        received += piece if received else first + piece
                deadline.reschedule(min(now() + limits.body_silence_seconds, last_moment))
            unpack.finish()
    except TimeoutError:
        raise _timed_out(limits, in_all=deadline.when() == last_moment) from None
    return bytes(received) if received else first


def _timed_out(limits: LimitSettings, *, in_all: bool) -> RequestError:
    setting = "body_seconds" if in_all else "body_silence_seconds"
    seconds: float = getattr(limits, setting)
    what = "the body did not come as a whole" if in_all else "no further byte of the body came"
    return RequestError(ErrorCode.REQUEST_TIMEOUT, f"{what} within {seconds:g} s", limit=setting)


def media_type(request: Request) -> str:
    """Return the declared media type; ``none`` without one, and if it declares another charset than UTF-8."""
    # Python's own parser of such headers takes quadratic time, on the event loop.
    header = request.headers.get("content-type", "").lower()
    if len(header) > MAX_MEDIA_TYPE:
        return "none"
    # A semicolon inside quotes separates no parameters, and an escaped quote ends no quotes.
    pieces = header.replace("\\\\", "").replace('\\"', "").split('"')
    pieces[1::2] = [quoted.replace(";", " ") for quoted in pieces[1::2]]
    found, *parameters = '"'.join(pieces).split(";")
    for parameter in parameters:
        if "charset" in parameter:
            name, _, value = parameter.partition("=")
            charset = value.strip().strip('"')
            if name.strip() in ("charset", "charset*") and charset not in ("", "utf-8", "utf8", "us-ascii"):
                return "none"
    return found.strip() or "none"


def content_encoding(request: Request) -> str:
    """Return the declared content encoding; ``identity`` without one."""
    return request.headers.get("content-encoding", "").strip().lower() or PLAIN


def declared_length(request: Request) -> int:
    """Return the declared length of a body; 0 without one. It may have any number of zeros in front."""
    declared = request.headers.get("content-length", "")
    return int(declared.lstrip("0") or "0") if declared.isascii() and declared.isdigit() else 0


def check_declared_length(request: Request, limits: LimitSettings, setting: str) -> int:
    """Return the declared length of a body, 0 without one. setting: the name of the limit.

    Raises RequestError REQUEST_TOO_LARGE.
    """
    length = declared_length(request)
    if length > getattr(limits, setting):
        raise too_large(limits, setting)
    return length


def too_large(limits: LimitSettings, setting: str) -> RequestError:
    """Return the error for a body above the limit with this name."""
    most: int = getattr(limits, setting)
    return RequestError(ErrorCode.REQUEST_TOO_LARGE, f"the body may have {most} bytes at most", limit=setting)


def _check_media_type(request: Request) -> None:
    """Require JSON in UTF-8, and a media type: browsers send requests without one across origins unasked."""
    if media_type(request) != "application/json":
        raise RequestError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send the body as `Content-Type: application/json`, in UTF-8"
        )
