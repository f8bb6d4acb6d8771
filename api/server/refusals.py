"""What the server refuses before a route sees it, and how the answer looks on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from api.answers.error_responses import error_response
from api.request_id import HEADER
from scoring.error_codes import ErrorCode, RequestError

RETRY_SECONDS = 1.0
"""The ``Retry-After`` for a client that sent too many requests ahead: by then, earlier ones are answered."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection is not listened to any further."""

    error: RequestError  # what the client is told
    limit: str | None  # the setting of the limit; None if the request was no valid HTTP


def headers_too_large(max_bytes: int) -> Refusal:
    """Return the refusal of a first line and headers that are too long together."""
    message = f"a request's first line and headers may have {max_bytes} bytes at most"
    return Refusal(RequestError(ErrorCode.HEADERS_TOO_LARGE, message), "max_header_bytes")


def too_many_headers(max_headers: int) -> Refusal:
    """Return the refusal of a request with too many headers."""
    message = f"a request may have {max_headers} headers at most"
    return Refusal(RequestError(ErrorCode.HEADERS_TOO_LARGE, message), "max_headers")


def headers_too_slow(seconds: float) -> Refusal:
    """Return the refusal of a request whose headers are not complete in time."""
    message = f"the headers of a request must arrive within {seconds:g} s"
    return Refusal(RequestError(ErrorCode.REQUEST_TIMEOUT, message), "header_seconds")


def too_many_ahead(max_requests: int) -> Refusal:
    """Return the refusal of a request that was sent while too many earlier ones of its connection have no answer."""
    message = f"a connection may have {max_requests} requests without an answer at most"
    error = RequestError(ErrorCode.TOO_MANY_OPEN_REQUESTS, message, retry_after=RETRY_SECONDS)
    return Refusal(error, "max_pipelined_requests")


def invalid_http(reason: str) -> Refusal:
    """Return the refusal of bytes that are no HTTP request. reason: the parser's, which quotes nothing."""
    message = f"this is not a valid HTTP/1.1 request: {reason}"
    return Refusal(RequestError(ErrorCode.INVALID_REQUEST, message), None)


def encode(refusal: Refusal, request_id: str, default_headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, bytes]:
    """Return the status of the answer, and the whole answer as bytes."""
    response = error_response(refusal.error, {HEADER: request_id, "Connection": "close"})
    lines = [STATUS_LINE[response.status_code]]
    for name, value in (*default_headers, *response.raw_headers):
        lines += (name, b": ", value, b"\r\n")
    return response.status_code, b"".join((*lines, b"\r\n", response.body))
