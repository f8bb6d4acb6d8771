"""Tracers whose spans a test can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler

from telemetry.spans import OpenTelemetryTracer
from tests.services import wait_until

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
UNSAMPLED_CALLER = f"{CALLER[:-2]}00"
OTHER_CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class RecordingTracer(OpenTelemetryTracer):
    """Keeps its spans in memory once they have ended. sampler: by default that of OpenTelemetry."""

    sampler: Sampler = field(default_factory=lambda: ParentBased(ALWAYS_ON))

    def __post_init__(self) -> None:
        provider = TracerProvider(sampler=self.sampler, shutdown_on_exit=False)
        self.exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        super().__init__(provider)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        """Return the one span of a name. It may end a moment after its request is answered."""
        wait_until(lambda: self.named(name), f"the span {name} has ended")
        (span,) = self.named(name)
        return span


def trace_id(span: ReadableSpan) -> str:
    return f"{_context(span).trace_id:032x}"


def span_id(span: ReadableSpan) -> str:
    return f"{_context(span).span_id:016x}"


def parent_id(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def context_of(span: ReadableSpan) -> str:
    """Return what goes on in a span, as W3C writes it."""
    return f"00-{trace_id(span)}-{span_id(span)}-{int(_context(span).trace_flags):02x}"


def links(span: ReadableSpan) -> set[tuple[str, str]]:
    """Return the trace ids and span ids of the spans that a span is linked to."""
    return {(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def _context(span: ReadableSpan) -> Any:
    context = span.context
    assert context is not None
    return context
