"""Spans by OpenTelemetry's SDK. Only :func:`telemetry.opening.open_tracer` imports this, and only if traces are wanted.

The SDK reads the rest of the OTEL_* variables itself: the sampler, the limits of spans, how they are sent and when.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor, SpanExporter
from opentelemetry.trace import Link, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from settings.telemetry import Exporter, TracingError, TracingSettings
from settings.version import VERSION
from telemetry.tracing import Attributes, Span, SpanKind, Tracer

CLOSE_SECONDS = 3.0
"""How long the end of a process waits for its last spans to be sent. The collector may be away."""

NANOSECONDS = 1_000_000_000

_W3C = TraceContextTextMapPropagator()


def make_tracer(settings: TracingSettings, role: str) -> Tracer:
    """Return a tracer that exports spans as the settings say. Raises TracingError."""
    resource = Resource.create().merge(
        Resource({"service.name": f"scoreline-{role}", "service.version": VERSION, "scoreline.role": role})
    )
    # What the operator says of the service wins.
    provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    for exporter in settings.exporters:
        if exporter is Exporter.CONSOLE:
            provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
        else:
            provider.add_span_processor(BatchSpanProcessor(_otlp_exporter(settings)))
    return OpenTelemetryTracer(provider)


def _otlp_exporter(settings: TracingSettings) -> SpanExporter:
    if settings.protocol == "grpc":
        try:
            module = import_module("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
        except ImportError as error:
            raise TracingError(
                "OTEL_EXPORTER_OTLP_PROTOCOL=grpc needs the package opentelemetry-exporter-otlp-proto-grpc: "
                "install it, or set http/protobuf"
            ) from error
        grpc: SpanExporter = module.OTLPSpanExporter()
        return grpc
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


class OpenTelemetryTracer:
    """See :class:`telemetry.tracing.Tracer`."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("scoreline", VERSION)

    @contextmanager
    def span(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        parent: str | None = None,
        state: str | None = None,
        links: Sequence[tuple[str, Attributes]] = (),
        attributes: Attributes | None = None,
        started_at: float | None = None,
    ) -> Iterator[Span]:
        started = self._tracer.start_span(
            name,
            _context(parent, state),
            trace.SpanKind[kind.name],
            attributes,
            _links(links),
            start_time=None if started_at is None else round(started_at * NANOSECONDS),
        )
        try:
            yield _OpenTelemetrySpan(started)
        except BaseException as error:
            # Its message may quote a client, and so may a stack.
            started.set_attribute("error.type", type(error).__qualname__)
            started.set_status(StatusCode.ERROR)
            raise
        finally:
            started.end()

    def record(
        self,
        name: str,
        started_at: float,
        ended_at: float,
        *,
        parent: str,
        links: Sequence[tuple[str, Attributes]] = (),
        attributes: Attributes | None = None,
    ) -> None:
        span = self._tracer.start_span(
            name,
            _context(parent, None),
            trace.SpanKind.INTERNAL,
            attributes,
            _links(links),
            start_time=round(started_at * NANOSECONDS),
        )
        span.end(round(ended_at * NANOSECONDS))

    def close(self) -> None:
        # The SDK waits for longer than a process may take to end, if the collector does not answer.
        closing = threading.Thread(target=self._provider.shutdown, name="sending spans", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


class _OpenTelemetrySpan:
    """See :class:`telemetry.tracing.Span`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent: str | None = None
        self.log_fields: Mapping[str, str] = {}
        if context.trace_flags.sampled:
            carrier: dict[str, str] = {}
            _W3C.inject(carrier, set_span_in_context(span))
            self.traceparent = carrier["traceparent"]
            self.log_fields = {
                "trace_id": trace.format_trace_id(context.trace_id),
                "span_id": trace.format_span_id(context.span_id),
            }

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def fail(self, reason: str) -> None:
        self._span.set_status(Status(StatusCode.ERROR, reason))


def _context(parent: str | None, state: str | None) -> Context:
    """Return the context that a text describes. One that is not valid begins a trace."""
    carrier = {} if parent is None else {"traceparent": parent}
    if state is not None:
        carrier["tracestate"] = state
    return _W3C.extract(carrier, Context())


def _links(links: Sequence[tuple[str, Attributes]]) -> list[Link]:
    linked = ((trace.get_current_span(_context(one, None)).get_span_context(), attributes) for one, attributes in links)
    return [Link(context, attributes) for context, attributes in linked if context.is_valid]
