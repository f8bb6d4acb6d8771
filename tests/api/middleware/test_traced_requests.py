"""Where there are traces, a request has a span, and the job that it submits goes on in its trace."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind
from sqlalchemy import select

from api.middleware.traced_requests import TracedRequests
from jobs.store.tables import jobs
from tests.api.batches.running import create, line, openai_of, upload
from tests.api.requests.uploads.uploading import body as uploaded_lines
from tests.api.requests.uploads.uploading import send
from tests.api.serving import RunningApi, StandInWorker, running_api
from tests.api.tiny_model import TinyModel
from tests.services import wait_until
from tests.telemetry.recording import (
    CALLER,
    TRACE_ID,
    UNSAMPLED_CALLER,
    RecordingTracer,
    attributes,
    context_of,
    parent_id,
    trace_id,
)

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}
Traced = tuple[RunningApi, StandInWorker, RecordingTracer]


@pytest.fixture
def traced(model: TinyModel, sqlite_url: str, tmp_path: Path) -> Iterator[Traced]:
    tracer = RecordingTracer()
    with running_api(model.directory, sqlite_url, tmp_path, tracer=tracer) as (api, worker):
        assert worker is not None
        yield api, worker, tracer


def traceparent_of(api: RunningApi, job_id: str) -> str | None:
    with api.app.state.service.store.database.read() as tx:
        found: str | None = tx.scalar(select(jobs.c.traceparent).where(jobs.c.id == job_id))
        return found


def test_without_traces_no_middleware_is_in_the_way_of_a_request(api: RunningApi) -> None:
    assert TracedRequests.__name__ not in str(api.app.user_middleware)
    assert traceparent_of(api, api.submit(headers={"traceparent": CALLER}, **BODY)["id"]) is None


def contexts_of_lines(api: RunningApi) -> list[str | None]:
    with api.app.state.service.store.database.read() as tx:
        return list(tx.scalars(select(jobs.c.traceparent).where(jobs.c.origin == "line")))


def test_a_request_goes_on_in_the_trace_of_its_caller_and_its_job_behind_it(traced: Traced) -> None:
    api, _, tracer = traced
    job_id = api.submit(headers={"traceparent": CALLER}, **BODY)["id"]
    span = tracer.only("POST /v1/jobs")
    assert span.kind is SpanKind.SERVER
    assert (trace_id(span), parent_id(span)) == (TRACE_ID, CALLER.split("-")[2])
    assert attributes(span) == {
        "http.request.method": "POST",
        "http.route": "/v1/jobs",
        "http.response.status_code": 202,
        "url.scheme": "http",
        "scoreline.job.id": job_id,
        "scoreline.replayed": False,
    }
    assert traceparent_of(api, job_id) == context_of(span)


def test_an_upload_and_the_lines_of_a_batch_are_traced_as_well(traced: Traced) -> None:
    api, worker, tracer = traced
    job_id = send(api, uploaded_lines([" France", " Spain"])).json()["id"]
    assert traceparent_of(api, job_id) == context_of(tracer.only("POST /v1/jobs"))
    worker.gate.clear()  # the jobs of lines are removed when they are written
    client = openai_of(api)
    create(client, upload(client, [line("a", BODY), line("b", BODY)]).id)
    wait_until(lambda: contexts_of_lines(api), "the lines are read")
    wait_until(lambda: tracer.named("read lines of a batch"), "the step has ended")
    assert set(contexts_of_lines(api)) <= set(map(context_of, tracer.named("read lines of a batch")))


def test_a_request_whose_caller_does_not_sample_leaves_no_span_and_its_job_no_trace(traced: Traced) -> None:
    api, _, tracer = traced
    job_id = api.submit(headers={"traceparent": UNSAMPLED_CALLER}, **BODY)["id"]
    assert traceparent_of(api, job_id) is None
    sampled = api.submit(headers={"traceparent": CALLER}, **BODY)["id"]
    assert traceparent_of(api, sampled) == context_of(tracer.only("POST /v1/jobs"))


def test_no_span_holds_a_text_of_a_client(traced: Traced) -> None:
    api, _, tracer = traced
    headers = {"X-Request-Id": "secret-id", "User-Agent": "secret-agent"}
    answer = api.client.post("/v1/score", json=BODY | {"query": "secret-query"}, headers=headers)
    assert answer.status_code == 200
    assert api.client.get("/secret-path?secret=1").status_code == 404
    assert api.client.request("PROPFIND", "/v1/score").status_code == 405
    assert api.client.post("/v1/jobs", json={"query": "secret-query", "items": "x", "labels": 1}).status_code == 400
    for name in ("POST /v1/score", "POST /v1/jobs", "GET", "HTTP /v1/score"):
        wait_until(partial(tracer.named, name), f"the span {name} has ended")
    assert not [span.name for span in tracer.spans if "secret" in span.to_json().lower()]


def test_what_monitoring_asks_for_is_not_traced(traced: Traced) -> None:
    api, _, tracer = traced
    for path in ("/livez", "/readyz", "/health", "/metrics"):
        api.client.get(path)
    assert not tracer.spans
