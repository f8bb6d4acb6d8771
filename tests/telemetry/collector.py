"""A collector that keeps the spans that processes send to it by the OpenTelemetry protocol, over HTTP."""

from __future__ import annotations

import gzip
import threading
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was sent."""

    service: str  # the name of the service that sent it
    name: str
    trace_id: str
    span_id: str
    parent_id: str  # empty for the first of a trace
    links: frozenset[tuple[str, str]]  # trace ids and span ids
    attributes: dict[str, Any]
    text: str  # all of it, to search in


class Collector:
    """Listens on a port of its own. A context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[ReceivedSpan] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._server.shutdown()
            self._server.server_close()

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All spans that were received so far."""
        with self._lock:
            return list(self._spans)

    def trace(self, trace_id: str) -> dict[str, list[ReceivedSpan]]:
        """Return the spans of a trace by name."""
        found: dict[str, list[ReceivedSpan]] = {}
        for span in self.spans:
            if span.trace_id == trace_id:
                found.setdefault(span.name, []).append(span)
        return found

    def _take(self, request: ExportTraceServiceRequest) -> None:
        received = [
            ReceivedSpan(
                service=_values(resource.resource.attributes)["service.name"],
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                links=frozenset((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                attributes=_values(span.attributes),
                text=str(span),
            )
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self._spans += received


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
