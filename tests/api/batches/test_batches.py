"""Batches by OpenAI's own client: from a file of requests to the files of their answers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from api.answers.presentation import encode_scoring
from api.batches import answering, feeder, reading
from api.requests.calls import parsed_call
from scoring.error_codes import ErrorCode, RequestError
from tests.api.batches.running import (
    BODY,
    create,
    encoded,
    ended,
    errors_of,
    line,
    openai_of,
    read,
    run,
    upload,
)
from tests.api.serving import Json, RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import ON_BOTH

Fresh = tuple[RunningApi, StandInWorker]


def without_ids(answer: Json) -> Json:
    """Return an answer without what differs between two answers to the same request."""
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


@ON_BOTH
def test_each_line_is_answered_as_if_it_were_sent_alone_in_the_order_of_the_file(
    fresh: Fresh, small_blocks: None
) -> None:
    api, _ = fresh
    bodies: dict[str, Json] = {
        f"r{n}": BODY
        | {
            "query": f"Query {n % 4}",
            "items": [f" item {n}"] * (n % 3),
            "return_logits": n % 2 == 0,
            "return_provenance": n % 3 == 0,
        }
        for n in range(40)
    }
    order = list(bodies)
    random.Random(1).shuffle(order)
    batch = run(openai_of(api), [line(name, bodies[name]) for name in order], metadata={"run": "7"})
    assert batch.status == "completed"
    assert batch.metadata == {"run": "7"}
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 40, "completed": 40, "failed": 0}
    assert batch.error_file_id is None
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at, batch.expires_at)
    output = read(openai_of(api), batch.output_file_id)
    assert [one["custom_id"] for one in output] == order
    assert len({one["id"] for one in output}) == 40
    tokens = 0
    for one in output:
        response = one["response"]
        assert (one["error"], response["status_code"]) == (None, 200)
        assert response["request_id"] == response["body"]["id"]
        alone = api.score(**bodies[one["custom_id"]])
        assert without_ids(response["body"]) == without_ids(alone)
        tokens += response["body"]["usage"]["prompt_tokens"]
    assert batch.usage is not None
    assert batch.usage.input_tokens == batch.usage.total_tokens == tokens


def test_rankings_come_with_their_documents(fresh: Fresh, small_blocks: None) -> None:
    api, _ = fresh
    bodies: dict[str, Json] = {
        "plain": {"query": "What is in England", "documents": ["London", {"text": "Paris"}, "The answer is 4"]},
        "top": {"query": "What", "documents": ["a", "b", "c"], "top_n": 2},
        "without": {"query": "What", "documents": ["a", "b"], "return_documents": False},
        "none": {"query": "What", "documents": []},
        "cut": {"query": "What", "documents": ["The answer is 4", "b"], "max_tokens_per_doc": 2},
    }
    client = openai_of(api)
    batch = run(client, [line(name, body, url="/v1/rerank") for name, body in bodies.items()], "/v1/rerank")
    output = read(client, batch.output_file_id)
    assert [one["custom_id"] for one in output] == list(bodies)
    for one in output:
        alone = api.client.post("/v1/rerank", json=bodies[one["custom_id"]]).json()
        assert without_ids(one["response"]["body"]) == without_ids(alone)


BAD: dict[str, tuple[object, tuple[Any, int, str, str | None]]] = {
    "no JSON": (b'{"custom_id": "a",', (None, 400, "invalid_json", None)),
    "no object": (b"[1]", (None, 400, "invalid_request", None)),
    "not UTF-8": (b'{"custom_id": "\xff"}', (None, 400, "invalid_json", None)),
    "no custom_id": ({"method": "POST", "url": "/v1/score", "body": BODY}, (None, 400, "invalid_request", "custom_id")),
    "a number as custom_id": (line(7), (None, 400, "invalid_request", "custom_id")),
    "a long custom_id": (line("x" * 513), (None, 400, "invalid_request", "custom_id")),
    "another method": (line("method", method="GET"), ("method", 400, "invalid_request", "method")),
    "another url": (line("url", url="/v1/rerank"), ("url", 400, "invalid_request", "url")),
    "no body": (line("body", None), ("body", 400, "invalid_request", "body")),
    "no query": (line("query", {"items": ["a"], "label_token_ids": [1]}), ("query", 400, "missing_query", "query")),
    "a wrong label": (
        line("label", BODY | {"label_token_ids": [10**6]}),
        ("label", 400, "token_id_exceeds_vocab", "label_token_ids[0]"),
    ),
    "another model": (line("model", BODY | {"model": "gpt"}), ("model", 404, "model_not_found", "model")),
    "too many items": (line("items", BODY | {"items": ["a"] * 1_001}), ("items", 413, "request_too_large", "items")),
    "a repeated custom_id": (line("good 0"), ("good 0", 400, "invalid_request", "custom_id")),
    "a long line": (b'{"custom_id": "' + b"x" * 2**17 + b'"}', (None, 413, "request_too_large", None)),
    "a long query": (
        line("context", BODY | {"query": "item " * 1_000}),
        ("context", 400, "context_length_exceeded", "items[0]"),
    ),
}


@pytest.mark.parametrize("step", ["small steps", "usual steps"])
def test_bad_lines_go_to_the_error_file_in_order_and_hurt_nobody(
    model: TinyModel, sqlite_url: str, tmp_path: Path, step: str, request: pytest.FixtureRequest
) -> None:
    if step == "small steps":
        request.getfixturevalue("small_blocks")
    with running_api(model.directory, sqlite_url, tmp_path, max_line_bytes=2**17) as (api, _):
        lines: list[object] = [b"", line("good 0"), b"  \r"]
        for n, (bad, _expected) in enumerate(BAD.values()):
            lines += [bad, line(f"good {n + 1}")]
        client = openai_of(api)
        file = client.files.create(file=("a", encoded(lines).rstrip(b"\n")), purpose="batch")
        batch = ended(client, create(client, file.id).id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {
            "total": 2 * len(BAD) + 1,
            "completed": len(BAD) + 1,
            "failed": len(BAD),
        }
        good = [one["custom_id"] for one in read(client, batch.output_file_id)]
        assert good == [f"good {n}" for n in range(len(BAD) + 1)]
        assert errors_of(read(client, batch.error_file_id)) == [expected for _, expected in BAD.values()]


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "no lines"), (b" \n\r\n", "no lines"), (b"PK\3\4\0\0{}\n", "zero byte")]
)
def test_a_file_that_can_not_be_read_as_lines_fails_its_batch(api: RunningApi, content: bytes, reason: str) -> None:
    client = openai_of(api)
    file = client.files.create(file=("a", content), purpose="batch")
    batch = ended(client, create(client, file.id).id)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert batch.errors.data is not None
    [error] = batch.errors.data
    assert (error.code, error.param, reason in (error.message or "")) == ("invalid_file", "input_file_id", True)


def test_a_line_whose_work_fails_or_whose_job_is_cancelled_or_deleted_says_so(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    client = openai_of(api)
    created = create(client, upload(client, [line(name) for name in ("cancelled", "deleted", "good")]).id)
    path = f"/v1/jobs?batch={created.id}"
    eventually(lambda: len(api.client.get(path).json()["data"]) == 3, "the lines are jobs")
    listed = api.client.get(path).json()
    assert api.client.get("/v1/jobs").json()["data"] == [], "they are listed only if their batch is asked for"
    first, second, third = (job["id"] for job in listed["data"])
    assert [job["priority"] for job in listed["data"]] == ["bulk"] * 3
    page = api.client.get(f"{path}&after={first}&limit=1").json()
    assert ([job["id"] for job in page["data"]], page["has_more"]) == ([second], True)
    api.client.post(f"/v1/jobs/{first}/cancel")
    api.client.delete(f"/v1/jobs/{second}")
    worker.gate.set()
    batch = ended(client, created.id)
    assert [one["response"]["body"]["id"] for one in read(client, batch.output_file_id)] == [third]
    assert errors_of(read(client, batch.error_file_id)) == [
        ("cancelled", 409, "job_cancelled", None),
        ("deleted", 404, "job_not_found", None),
    ]
    worker.fails = True
    batch = run(client, [line("poison")])
    metrics = api.client.get("/metrics").text
    assert 'scoreline_batches_ended_total{status="completed"} 2.0' in metrics
    assert 'scoreline_batch_lines_total{outcome="completed"} 1.0' in metrics
    assert 'scoreline_batch_lines_total{outcome="failed"} 3.0' in metrics
    assert errors_of(read(client, batch.error_file_id)) == [("poison", 500, "internal_error", None)]


def test_a_block_with_a_line_that_takes_too_much_is_read_in_parts(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines before and behind it are answered, and it is refused as if it were sent alone."""
    monkeypatch.setattr(feeder, "SHORT_BYTES", 0)
    service = api.app.state.service

    async def refuse_heavy(_: str, function: Any, body: bytes, *given: Any) -> Any:
        if b"heavy" in body:
            raise RequestError(ErrorCode.REQUEST_TOO_LARGE, "reading the body took too long")
        return function(service.reading, body, *given)

    monkeypatch.setattr(service.bodies.process, "read", refuse_heavy)
    client = openai_of(api)
    names = [f"r{n}" for n in range(20)]
    names[11] = "heavy"
    batch = run(client, [line(name) for name in names])
    assert [one["custom_id"] for one in read(client, batch.output_file_id)] == [n for n in names if n != "heavy"]
    assert errors_of(read(client, batch.error_file_id)) == [("heavy", 413, "request_too_large", None)]


def test_a_fault_of_ours_in_one_line_is_its_internal_error_and_hurts_nobody(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = encode_scoring

    def fail_to_read(context: Any, body: Json, *given: Any) -> Any:
        if body["query"] == "read":
            raise BaseException("a bug")
        return parsed_call(context, body, *given)

    def fail_to_encode(scored: Any) -> bytes:
        if scored.job.prompt_tokens == 1:
            raise ValueError("a bug")
        return encode(scored)

    monkeypatch.setattr(reading, "parsed_call", fail_to_read)
    monkeypatch.setattr(answering, "encode_scoring", fail_to_encode)
    client = openai_of(api)
    lines = [line("a"), line("b", BODY | {"query": "read"}), line("c", BODY | {"query": "c", "items": [""]}), line("d")]
    batch = run(client, lines)
    assert [one["custom_id"] for one in read(client, batch.output_file_id)] == ["a", "d"]
    assert errors_of(read(client, batch.error_file_id)) == [
        ("b", 500, "internal_error", None),
        ("c", 500, "internal_error", None),
    ]
