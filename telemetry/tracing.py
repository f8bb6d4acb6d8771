"""The interface by which the other rooms make spans of traces. Nothing of OpenTelemetry is imported here.

Between spans, threads and processes, a context is passed on as the text of W3C's ``traceparent``. A span that is not
sampled has no such context, so no span below it is recorded either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from enum import StrEnum
from typing import Protocol

Attributes = Mapping[str, str | int | float | bool]
"""What is known of a span. It never holds a text of a client, and no key."""


class SpanKind(StrEnum):
    """Which side of a call a span is of."""

    SERVER = "server"  # it answers a request
    CLIENT = "client"  # it sends one
    CONSUMER = "consumer"  # it works on what others have queued
    INTERNAL = "internal"


class Span(Protocol):
    """Something that takes time."""

    @property
    def traceparent(self) -> str | None:
        """The context for what follows from it; None if the span is not sampled."""

    @property
    def log_fields(self) -> Mapping[str, str]:
        """What log lines carry that are written meanwhile; empty if the span is not sampled."""

    def rename(self, name: str) -> None:
        """Give it another name."""

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""

    def fail(self, reason: str) -> None:
        """Mark it as failed. reason: one of few words, and no text of a client."""


class Tracer(Protocol):
    """Makes spans. Safe to use from threads."""

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
    ) -> AbstractContextManager[Span]:
        """Return a span that lasts as long as its block; an exception marks it as failed, without its message.

        parent: the traceparent of another span; None begins a trace. state: the ``tracestate`` that came with it.
        links: other spans that it follows from, with attributes. started_at: Unix seconds; None for now.
        """

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
        """Make a span that is over. started_at, ended_at: Unix seconds."""

    def close(self) -> None:
        """Send what was not sent yet, in bounded time."""


current_span: ContextVar[Span | None] = ContextVar("current_span", default=None)
"""The span of the request that this code works for. Threads that work for a request inherit it."""


def current_traceparent() -> str | None:
    """Return the context of the request that this code works for, if it is traced."""
    span = current_span.get()
    return None if span is None else span.traceparent
