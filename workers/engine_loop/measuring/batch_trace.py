"""The spans of a batch.

A batch holds chunks of many jobs, and each job has a trace of its own, which began with the request that submitted it.
The span of the batch is in the trace of its first traced job, and is linked to all of them. Each other job gets a span
in its own trace that is linked to that of the batch. So from the trace of each job one finds the batch, and from the
batch its jobs. A batch without a traced job has no span.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from jobs.store.records import Claim, ClaimedJob
from telemetry.tracing import Attributes, Span, SpanKind, Tracer

MAX_JOBS = 128
"""Jobs of a batch that are traced at most: a span has no room for more links."""

MAX_PHASES = 64
"""Spans of the engine's phases in a batch at most. What comes after them is part of the last ones."""

MIN_PHASE_SECONDS = 0.0001
"""A shorter phase did nothing, such as the heads of rows that wait to be joined by others."""


@dataclass(slots=True)
class _Run:
    """Steps of one phase that follow on one another: Unix seconds."""

    phase: str
    started_at: float
    ended_at: float
    steps: int = 1


@dataclass(slots=True, eq=False)
class BatchTrace:
    """The span of a batch while it is worked on."""

    tracer: Tracer
    span: Span
    parent: str  # the traceparent of the span
    _runs: list[_Run] = field(default_factory=list)

    def step(self, phase: str, seconds: float) -> None:
        """Record that the engine has just been in a phase for so long."""
        if seconds < MIN_PHASE_SECONDS:
            return
        now = time.time()
        same = next((run for run in reversed(self._runs[-1:]) if run.phase == phase), None)
        if same is None and len(self._runs) >= MAX_PHASES:
            same = next((run for run in reversed(self._runs) if run.phase == phase), None)
        if same is None:
            self._runs.append(_Run(phase, now - seconds, now))
        else:
            same.ended_at = now
            same.steps += 1

    @contextmanager
    def commit(self, chunks: int) -> Iterator[None]:
        """Make the span of a commit. For the thread that commits, whose log lines name the trace meanwhile."""
        with (
            self.tracer.span("commit", parent=self.parent, attributes={"scoreline.chunks": chunks}),
            structlog.contextvars.bound_contextvars(**self.span.log_fields),
        ):
            yield

    def end(self, outcome: str) -> None:
        """Make the spans of the engine's phases, and say what came of the batch."""
        for run in self._runs:
            self.tracer.record(
                run.phase, run.started_at, run.ended_at, parent=self.parent, attributes={"scoreline.steps": run.steps}
            )
        self.span.set({"scoreline.outcome": outcome})
        if outcome == "failed":
            self.span.fail(outcome)


@contextmanager
def batch_trace(
    tracer: Tracer | None, claimed: Claim, claimed_at: float, worker_id: str
) -> Iterator[BatchTrace | None]:
    """Make the span of a batch, which begins with its claim, if one of its jobs is traced. claimed_at: monotonic."""
    traced = [] if tracer is None else [job for job in claimed.jobs if job.traceparent is not None][:MAX_JOBS]
    if tracer is None or not traced:
        yield None
        return
    claimed_for = time.monotonic() - claimed_at
    began = time.time() - claimed_for
    links = [(job.traceparent, _job(job)) for job in traced if job.traceparent is not None]
    attributes: Attributes = {
        "scoreline.batch.id": claimed.batch_id,
        "scoreline.worker.id": worker_id,
        "scoreline.interactive": claimed.interactive,
        "scoreline.groups": len(claimed.groups),
        "scoreline.chunks": len(claimed.chunk_ids),
        "scoreline.jobs": len(claimed.jobs),
        "scoreline.tokens": sum(claimed.tokens.values()),
    }
    first, *others = links
    with tracer.span(
        "score batch", SpanKind.CONSUMER, parent=first[0], links=links, attributes=attributes, started_at=began
    ) as span:
        if span.traceparent is None:
            yield None
            return
        tracer.record("claim", began, began + claimed_for, parent=span.traceparent)
        with structlog.contextvars.bound_contextvars(**span.log_fields):
            yield BatchTrace(tracer, span, span.traceparent)
    ended_at = time.time()
    back = (span.traceparent, {"scoreline.batch.id": claimed.batch_id})
    for traceparent, of_job in others:
        tracer.record("score in a batch", began, ended_at, parent=traceparent, links=[back], attributes=of_job)


def _job(job: ClaimedJob) -> Attributes:
    return {
        "scoreline.job.id": job.id,
        "scoreline.priority": job.priority.value,
        "scoreline.chunks_of_job": len(job.chunk_ids),
    }
