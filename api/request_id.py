"""The outermost layer: a request id on every response, one access line per request, and no exception past it.

Nothing of a request's body reaches the log here: queries and items are their sender's business.
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

from api.answers.error_responses import error_response, internal_error

HEADER = "x-request-id"

_FURTHER = "scoreline.headers"
"""Where a request's scope has what else is to be in its answer."""

CLIENT_CLOSED_REQUEST = 499
"""What the access log says of a request whose client went away (nginx's convention); nobody receives it."""

_SANE = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")

log = structlog.stdlib.get_logger("api.access")


def request_id_from(header: str | None) -> str:
    """The client's own id where it is sane (so that logs of both sides can be joined), a new one otherwise."""
    if header is not None and _SANE.fullmatch(header):
        return header
    return uuid.uuid4().hex


def add_headers(scope: Scope, headers: Mapping[str, str]) -> None:
    """Have headers in the answer to a request, whoever makes it."""
    scope[_FURTHER].update(headers)


class RequestContext:
    """ASGI middleware around everything else. answered: is told of each request, its status, and its seconds."""

    def __init__(self, app: ASGIApp, answered: Callable[[Scope, int, float], None]) -> None:
        self.app = app
        self.answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_at = time.perf_counter()
        request_id = request_id_from(Headers(scope=scope).get(HEADER))
        further: dict[str, str] = {}
        scope[_FURTHER] = further
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(further | {HEADER: request_id})
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self.app(scope, receive, send_with_id)
            except ClientDisconnect:
                status = CLIENT_CLOSED_REQUEST
            except Exception:
                log.exception("unexpected error", method=scope["method"], path=scope["path"])
                if status is not None:
                    raise  # Too late for an envelope: the server breaks the connection off, and the client sees that.
                await error_response(internal_error(request_id))(scope, receive, send_with_id)
            finally:
                seconds = time.perf_counter() - started_at
                self.answered(scope, status or CLIENT_CLOSED_REQUEST, seconds)
                log.info(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    duration_ms=round(seconds * 1000, 2),
                )
