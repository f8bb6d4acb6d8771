"""The outermost middleware: it sets the request id, writes the access log and catches all exceptions.

The content of a request is never logged, because queries and items may be confidential.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answers.error_responses import error_response, noted_of
from scoring.error_codes import ErrorCode, RequestError

HEADER = "x-request-id"

OTHER_HEADER = "x-typesafe-request-id"
"""The header in which TypeSafe's clients look for the id. A request's own id is not read from it."""

_EXTRA_HEADERS = "scoreline.headers"
"""The key of a request's scope under which further headers of its response are kept."""

CLIENT_CLOSED_REQUEST = 499
"""The status in the access log for a request whose client disconnected, as in nginx. It is never sent."""

_VALID = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")

log = structlog.stdlib.get_logger("api.access")


class BrokenOffError(Exception):
    """The rest of a response that has begun can't be sent. The connection is closed, so the client sees that it ended
    too early."""


def request_id_from(header: str | None) -> str:
    """Return the client's own id if it is valid, so that the logs of both sides can be joined; otherwise a new one."""
    if header is not None and _VALID.fullmatch(header):
        return header
    return uuid.uuid4().hex


def add_headers(scope: Scope, headers: Mapping[str, str]) -> None:
    """Add headers to the response to a request, including error responses."""
    scope[_EXTRA_HEADERS].update(headers)


class RequestContext:
    """ASGI middleware around everything else. count_request: called with each request, its status, its seconds, and
    the code of its error, if it has any."""

    def __init__(self, app: ASGIApp, count_request: Callable[[Scope, int, float, str | None], None]) -> None:
        self.app = app
        self.count_request = count_request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_at = time.perf_counter()
        request_id = request_id_from(Headers(scope=scope).get(HEADER))
        extra_headers: dict[str, str] = {}
        scope[_EXTRA_HEADERS] = extra_headers
        noted = noted_of(scope)
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(extra_headers | {HEADER: request_id, OTHER_HEADER: request_id})
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self.app(scope, receive, send_with_id)
            except ClientDisconnect:
                status = CLIENT_CLOSED_REQUEST
            except BrokenOffError as error:
                # The server closes the connection of a response that is not complete.
                log.warning("a response broke off", path=scope["path"], reason=str(error))
            except Exception:
                log.exception("unexpected error", method=scope["method"], path=scope["path"])
                if status is not None:
                    raise  # The response has begun, so the server closes the connection instead of sending an envelope.
                # It names the log entry and tells nothing about the cause.
                fault = RequestError(ErrorCode.INTERNAL_ERROR, f"internal error; please quote request id {request_id}")
                await error_response(fault)(scope, receive, send_with_id)
            finally:
                seconds = time.perf_counter() - started_at
                self.count_request(scope, status or CLIENT_CLOSED_REQUEST, seconds, noted.get("code"))
                log.info(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    duration_ms=round(seconds * 1000, 2),
                    **noted,
                )
