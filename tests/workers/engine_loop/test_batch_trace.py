"""The spans of a batch: one in the trace of a job of it, linked to all its traced jobs, and one for each other job."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.trace import SpanKind

from jobs.store.records import JobStatus
from tests.services import wait_until
from tests.telemetry.recording import (
    CALLER,
    OTHER_CALLER,
    UNSAMPLED_CALLER,
    RecordingTracer,
    attributes,
    links,
    parent_id,
    span_id,
    trace_id,
)
from tests.workers.conftest import EAGER, Store, Worker
from tests.workers.engines import POISON, MadeUpEngine

StartTraced = Callable[..., tuple[Worker, RecordingTracer]]


@pytest.fixture
def start_traced(store: Store) -> Iterator[StartTraced]:
    """Start a worker with a tracer. It is stopped at the end of the test."""
    workers: list[Worker] = []

    def start(engine: MadeUpEngine | None = None) -> tuple[Worker, RecordingTracer]:
        tracer = RecordingTracer()
        workers.append(Worker(store, EAGER, engine, tracer=tracer))
        return workers[-1], tracer

    yield start
    for worker in workers:
        worker.stop()


def ids(traceparent: str) -> tuple[str, str]:
    _, trace, span, _ = traceparent.split("-")
    return trace, span


def test_a_batch_is_linked_to_its_jobs_and_they_to_it(store: Store, start_traced: StartTraced) -> None:
    first = store.submit(chunks=2, traceparent=CALLER)
    store.submit(chunks=1)
    other = store.submit(chunks=1, traceparent=OTHER_CALLER)
    _, tracer = start_traced()
    wait_until(lambda: tracer.named("score in a batch"), "the batch has ended")
    batch, of_other = tracer.only("score batch"), tracer.only("score in a batch")
    assert batch.kind is SpanKind.CONSUMER
    assert (trace_id(batch), parent_id(batch)) == ids(CALLER)
    assert links(batch) == {ids(CALLER), ids(OTHER_CALLER)}
    assert {dict(link.attributes or {})["scoreline.job.id"] for link in batch.links} == {first, other}
    assert (trace_id(of_other), parent_id(of_other)) == ids(OTHER_CALLER)
    assert links(of_other) == {(trace_id(batch), span_id(batch))}
    told = attributes(batch)
    assert told["scoreline.jobs"] == 3, "untraced ones count, too"
    assert told["scoreline.chunks"] == 4
    assert told["scoreline.outcome"] == "finished"
    children = {span.name: span for span in tracer.spans if parent_id(span) == span_id(batch)}
    assert set(children) == {"claim", "extend", "commit"}
    assert attributes(children["extend"]) == {"scoreline.steps": 4}, "steps of one phase that follow on one another"
    starts = [children[name].start_time or 0 for name in ("claim", "extend", "commit")]
    assert (batch.start_time or 0) == starts[0] <= starts[1] <= starts[2]


@pytest.mark.parametrize("traceparent", [None, UNSAMPLED_CALLER])
def test_a_batch_without_a_traced_job_has_no_span(
    store: Store, start_traced: StartTraced, traceparent: str | None
) -> None:
    worker, tracer = start_traced()
    store.wait_for(store.submit(traceparent=traceparent))
    worker.stop()
    assert not tracer.spans


def test_a_batch_that_fails_has_a_failed_span(store: Store, start_traced: StartTraced) -> None:
    job_id = store.submit(token=POISON, traceparent=CALLER)
    worker, tracer = start_traced()
    store.wait_for(job_id, JobStatus.FAILED)
    worker.stop()
    batches = tracer.named("score batch")
    assert {attributes(span)["scoreline.outcome"] for span in batches} == {"failed"}
    assert not any(span.status.is_ok for span in batches)
