"""A span for each request. This middleware is part of the application only if there are traces."""

from __future__ import annotations

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.budget import MONITORING
from api.metrics import METHODS
from telemetry.tracing import SpanKind, Tracer, current_span


class TracedRequests:
    """ASGI middleware around everything that works for a request, so that its log lines name its trace."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self.app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in MONITORING:
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # The route is recorded and not the path, because a client may write anything into a path.
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        name = "HTTP" if method == "_OTHER" else method  # as OpenTelemetry's conventions name spans of HTTP
        with self._tracer.span(
            name,
            SpanKind.SERVER,
            parent=headers.get("traceparent"),
            state=headers.get("tracestate"),
            attributes={"http.request.method": method, "url.scheme": scope["scheme"]},
        ) as span:

            async def send_and_note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set({"http.response.status_code": message["status"]})
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            token = current_span.set(span)
            try:
                with structlog.contextvars.bound_contextvars(**span.log_fields):
                    await self.app(scope, receive, send_and_note)
            finally:
                current_span.reset(token)
                route = getattr(scope.get("route"), "path", None)
                if route is not None:
                    span.rename(f"{name} {route}")
                    span.set({"http.route": route})
