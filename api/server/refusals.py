"""What the server refuses before a route sees it, and how the answer looks on the wire."""

from __future__ import annotations

from collections.abc import Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from api.answers.error_responses import error_response
from api.request_id import HEADER
from scoring.error_codes import ErrorCode, RequestError, invalid
from settings.limits import LimitSettings

MAX_PARAMETERS = 256
"""The most parameters of a target. The framework parses them for each route, before anybody knows who is asking."""

UNREAD_BYTES = 2**16
"""The most bytes of bodies that a connection sends while nothing reads them."""

RETRY_SECONDS = 1.0
"""The ``Retry-After`` for a client that sent too many requests ahead, or to a server that stops or starts."""

FIRST_REQUEST_SECONDS = 1.0
"""How long a server that stops waits for the first request of a connection."""


def headers_too_large(limits: LimitSettings) -> RequestError:
    """Return the error for a first line and headers, or for trailers, that are too long together."""
    message = f"a request's first line and headers may have {limits.max_header_bytes} bytes at most"
    return RequestError(ErrorCode.HEADERS_TOO_LARGE, message, limit="max_header_bytes")


def too_many_headers(limits: LimitSettings) -> RequestError:
    """Return the error for a request with too many headers or trailers."""
    message = f"a request may have {limits.max_headers} headers at most"
    return RequestError(ErrorCode.HEADERS_TOO_LARGE, message, limit="max_headers")


def too_many_parameters() -> RequestError:
    """Return the error for a target with too many parameters."""
    message = f"a target may have {MAX_PARAMETERS} parameters at most"
    return RequestError(ErrorCode.HEADERS_TOO_LARGE, message, limit="max_parameters")


def body_not_read() -> RequestError:
    """Return the error for a long body that is sent to a route that reads none."""
    message = f"nothing reads the body of such a request, which may have {UNREAD_BYTES} bytes at most"
    return RequestError(ErrorCode.REQUEST_TOO_LARGE, message, limit="unread_bytes")


def bodies_too_far_ahead() -> RequestError:
    """Return the error for long bodies that were sent ahead of an answer."""
    message = f"bodies that are sent before the answer to an earlier request may have {UNREAD_BYTES} bytes at most"
    return RequestError(ErrorCode.TOO_MANY_OPEN_REQUESTS, message, retry_after=RETRY_SECONDS, limit="unread_bytes")


def headers_too_slow(limits: LimitSettings) -> RequestError:
    """Return the error for a request whose headers are not complete in time."""
    message = f"the headers of a request must arrive within {limits.header_seconds:g} s"
    return RequestError(ErrorCode.REQUEST_TIMEOUT, message, limit="header_seconds")


def too_many_ahead(limits: LimitSettings) -> RequestError:
    """Return the error for a request that was sent while too many of its connection have no answer."""
    message = f"a connection may have {limits.max_pipelined_requests} requests without an answer at most"
    return RequestError(
        ErrorCode.TOO_MANY_OPEN_REQUESTS, message, retry_after=RETRY_SECONDS, limit="max_pipelined_requests"
    )


def stopping() -> RequestError:
    """Return the error for a request that comes while the server stops, and nothing of which is done."""
    message = "this server stops; please send the request again"
    return RequestError(ErrorCode.SERVER_STOPPING, message, retry_after=RETRY_SECONDS)


def starting() -> RequestError:
    """Return the error for a request that comes before the server can take any."""
    message = "this server starts; please send the request again"
    return RequestError(ErrorCode.SERVER_STARTING, message, retry_after=RETRY_SECONDS)


def invalid_http(reason: str) -> RequestError:
    """Return the error for bytes that are no HTTP request. reason: the parser's, which quotes nothing."""
    return invalid(f"this is not a valid HTTP/1.1 request: {reason}")


def encode(error: RequestError, request_id: str, default_headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, bytes]:
    """Return the status of the answer, and the whole answer as bytes."""
    response = error_response(error, {HEADER: request_id, "Connection": "close"})
    lines = [STATUS_LINE[response.status_code]]
    others = (header for header in default_headers if header[0] != b"connection")
    for name, value in (*others, *response.raw_headers):
        lines += (name, b": ", value, b"\r\n")
    return response.status_code, b"".join((*lines, b"\r\n", response.body))
