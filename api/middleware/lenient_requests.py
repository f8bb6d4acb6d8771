"""Middleware for requests that load balancers and base URLs have changed a little.

``HEAD`` is served like ``GET``, and a slash too many is ignored. But a path is compared as it was sent: one that spells
its letters as ``%6d`` is another path, so that what a proxy keeps from strangers by its spelling has no other spelling.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STRICT_PATHS = frozenset({"/metrics"})
"""Paths that are found only as they are spelled: proxies keep strangers away from them by their spelling."""

_SLASHES = re.compile("/{2,}")


class _HeadAnsweredError(OSError):
    """The rest of a body is not wanted. Streams take an OSError for the departure of their client."""


class LenientRequests:
    """ASGI middleware: routes see ``GET`` in place of ``HEAD``, and paths without empty segments."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, is_head = _without_empty_segments(_sent_path(scope)), scope["method"] == "HEAD"
        if path == scope["path"] and not is_head:
            await self.app(scope, receive, send)
            return
        # The server sends no body to HEAD, so it must not see the change.
        changed = {**scope, "path": path, "method": "GET" if is_head else scope["method"]}
        try:
            await self.app(changed, receive, _without_body(send) if is_head else send)
        except Exception as error:
            if not _is_head_answered(error):
                raise
        finally:
            # What counts requests looks at the route.
            if "route" in changed:
                scope["route"] = changed["route"]


def _sent_path(scope: Scope) -> str:
    """Return the path as it was sent, where the server has decoded it."""
    raw_path: bytes | None = scope.get("raw_path")
    return scope["path"] if raw_path is None or b"%" not in raw_path else raw_path.decode("latin-1")


def _without_empty_segments(path: str) -> str:
    """Return a path as the routes know it."""
    found = _SLASHES.sub("/", path).rstrip("/") or "/"
    return path if found in STRICT_PATHS else found


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        if message["type"] != "http.response.body":
            await send(message)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if message.get("more_body"):
            raise _HeadAnsweredError

    return send_head


def _is_head_answered(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, _HeadAnsweredError):
        error = error.__cause__ or error.__context__
    return error is not None
