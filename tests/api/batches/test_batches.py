"""Batches by OpenAI's own client: from a file of requests to the files of their answers."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import func, select

from api.batches import blocks, feeder
from jobs.file_batches import writing
from jobs.file_batches.tables import batch_lines, file_batches
from jobs.files.tables import files
from jobs.store.database import Database
from jobs.store.tables import jobs
from jobs.tenancy.keys import Scope, create_key
from jobs.tenancy.tenants import set_tenant
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
from tests.api.delivering import LOOPBACK, delivering, verified
from tests.api.every_route import BATCH
from tests.api.serving import Json, RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import quick_on
from tests.webhooks.receivers import Receiver, status

Fresh = tuple[RunningApi, StandInWorker]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the sizes of steps, so that a few lines take many of them."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 700)
    monkeypatch.setattr(blocks, "BLOCK_LINES", 5)
    monkeypatch.setattr(writing, "LINES_PER_STEP", 7)


def without_ids(answer: Json) -> Json:
    """Return an answer without what differs between two answers to the same request."""
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


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


def test_a_cancelled_batch_writes_what_was_scored_and_names_all_other_lines(
    fresh: Fresh, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, worker = fresh
    client = openai_of(api)
    worker.budget = 1
    scored: list[str] = []
    score = worker.score_chunk

    def score_three(group: Any, chunk: Any) -> Any:
        scored.append("")
        if len(scored) == 3:
            worker.gate.clear()
        return score(group, chunk)

    worker.score_chunk = score_three
    names = [f"r{n}" for n in range(60)]
    created = create(client, upload(client, [line(n, BODY | {"query": n}) for n in names]).id)
    eventually(lambda: len(scored) >= 3, "some lines are scored")
    assert client.batches.cancel(created.id).status == "cancelling"
    batch = ended(client, created.id)
    worker.gate.set()
    assert (batch.status, client.batches.cancel(created.id).status) == ("cancelled", "cancelled")
    assert None not in (batch.cancelling_at, batch.cancelled_at)
    output, errors = read(client, batch.output_file_id), read(client, batch.error_file_id)
    assert sorted([one["custom_id"] for one in output + errors]) == sorted(names)
    scored_names = {one["custom_id"] for one in output}
    assert [one["custom_id"] for one in errors] == [name for name in names if name not in scored_names]
    assert len(output) >= 2, "the third one may be cancelled before its scores are stored"
    assert {(one["response"], one["error"]["code"]) for one in errors} == {(None, "batch_cancelled")}
    with closing(Database.open(api.store)) as database, database.read() as tx:
        assert set(tx.scalars(select(jobs.c.status))) <= {"succeeded", "cancelled"}


def test_a_batch_that_expires_names_the_lines_that_were_not_scored(fresh: Fresh) -> None:
    api, worker = fresh
    client = openai_of(api)
    worker.gate.clear()
    batch = run(client, [line("a"), b"broken", line("b")], window="1s")
    worker.gate.set()
    assert (batch.status, batch.output_file_id) == ("expired", None)
    assert batch.expired_at is not None
    errors = read(client, batch.error_file_id)
    assert [(one["custom_id"], (one["error"] or {}).get("code")) for one in errors] == [
        ("a", "batch_expired"),
        (None, None),
        ("b", "batch_expired"),
    ]


def test_lines_that_were_not_even_read_before_the_end_of_the_window_expire(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> float:
        return 0.05

    monkeypatch.setattr(feeder.Feeder, "feed", never)
    with running_api(model.directory, sqlite_url, tmp_path) as (api, _):
        client = openai_of(api)
        batch = run(client, [line("a"), line("a"), b"broken"], window="1s")
        assert batch.status == "expired"
        errors = read(client, batch.error_file_id)
        assert [(one["custom_id"], one["error"]["code"]) for one in errors] == [
            ("a", "batch_expired"),
            ("a", "batch_expired"),
            (None, "batch_expired"),
        ]


def test_batches_are_listed_in_pages_newest_first(api: RunningApi) -> None:
    client = openai_of(api)
    file = upload(client, [line("a")])
    made = [create(client, file.id).id for _ in range(5)]
    assert [one.id for one in client.batches.list(limit=2)][:5] == made[::-1]
    page = client.batches.list(limit=2)
    assert (len(page.data), page.has_more) == (2, True)
    for batch_id in made:
        ended(client, batch_id)


def test_an_idempotency_key_makes_a_batch_once(fresh: Fresh) -> None:
    api, _ = fresh
    client = openai_of(api)
    file = upload(client, [line("a")])
    key = {"Idempotency-Key": "one"}
    made = {create(client, file.id, extra_headers=key).id for _ in range(3)}
    assert len(made) == 1
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        create(client, file.id, metadata={"other": "body"}, extra_headers=key)
    assert caught.value.code == "idempotency_key_reused"
    assert len(client.batches.list().data) == 1


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"webhook": {"url": "https://example.com", "events": ["job.failed"]}}, "webhook.events[0]"),
    ],
)
def test_a_wrong_field_of_a_batch_is_named(api: RunningApi, changed: Json, param: str) -> None:
    answer = api.client.post("/v1/batches", json={**BATCH, "input_file_id": "file_0", **changed})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@quick_on("postgres")  # it takes no NUL
def test_a_missing_file_or_batch_is_an_exception_of_the_client(fresh: Fresh) -> None:
    api, _ = fresh
    client = openai_of(api)
    for file_id in ("file_0", "nonsense", "\0", "file_\0"):
        with pytest.raises(openai.NotFoundError) as caught:
            create(client, file_id)
        assert (caught.value.code, caught.value.param) == ("file_not_found", "input_file_id")
    with pytest.raises(openai.NotFoundError) as caught:
        client.batches.retrieve("batch_0")
    assert caught.value.code == "batch_not_found"


def test_the_webhook_of_a_batch_is_told_of_its_end(model: TinyModel, store_url: str, tmp_path: Path) -> None:
    with (
        running_api(model.directory, store_url, tmp_path, webhook_allowed_networks=LOOPBACK) as (api, _),
        delivering(store_url),
        Receiver(status(204)) as receiver,
    ):
        client = openai_of(api)
        webhook = {"url": receiver.url()}
        batch = run(client, [line("a")], extra_body={"webhook": webhook})
        silent = run(client, [line("a")], extra_body={"webhook": webhook | {"events": ["batch.failed"]}})
        path = f"/v1/batches/{batch.id}/deliveries"

        def delivered() -> bool:
            return [one["state"] for one in api.client.get(path).json()["data"]] == ["delivered"]

        eventually(delivered, "it is delivered")
        [request] = receiver.requests
        secret = api.client.get("/v1/webhook-secrets").json()["data"][0]["secret"]
        event = verified(secret, request)
        assert (event["type"], event["data"]["id"], event["data"]["status"]) == (
            "batch.completed",
            batch.id,
            "completed",
        )
        assert event["data"]["urls"]["deliveries"] == path
        [delivery] = api.client.get(path).json()["data"]
        assert (delivery["batch_id"], delivery["job_id"]) == (batch.id, None)
        api.client.post(f"{path}/{delivery['id']}/redeliver").raise_for_status()
        eventually(lambda: len(receiver.requests) == 2, "it is sent again")
        assert api.client.get(f"/v1/batches/{silent.id}/deliveries").json()["data"] == []


@quick_on("postgres")
def test_a_quota_delays_lines_and_refuses_only_those_that_it_can_never_hold(fresh: Fresh) -> None:
    api, worker = fresh
    store = Database.open(api.store)
    key, _ = create_key(store, "acme", "acme", frozenset(Scope))
    set_tenant(store, "acme", max_waiting_tokens=60)
    store.close()
    client = openai_of(api, key)
    worker.gate.clear()
    lines = [line(f"r{n}", BODY | {"query": f"Query {n}", "items": ["a"]}) for n in range(30)]
    lines.insert(7, line("huge", BODY | {"items": [" France is"] * 100}))
    created = create(client, upload(client, lines).id)

    def read_lines() -> int:
        with closing(Database.open(api.store)) as database, database.read() as tx:
            return int(tx.scalar(select(func.count()).select_from(batch_lines)) or 0)

    eventually(lambda: read_lines() > 0, "some lines fit")
    assert read_lines() < 31
    worker.gate.set()
    batch = ended(client, created.id)
    assert batch.status == "completed"
    assert [one["custom_id"] for one in read(client, batch.output_file_id)] == [f"r{n}" for n in range(30)]
    assert errors_of(read(client, batch.error_file_id)) == [("huge", 413, "request_too_large", None)]


def test_lines_wait_while_too_many_chunks_wait(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, max_waiting_chunks=10) as (api, worker):
        assert worker is not None
        client = openai_of(api)
        batch = run(client, [line(f"r{n}") for n in range(100)])
        assert (batch.status, len(read(client, batch.output_file_id))) == ("completed", 100)


def test_a_batch_is_removed_with_its_files_after_its_retention(
    model: TinyModel, store_url: str, tmp_path: Path
) -> None:
    with running_api(model.directory, store_url, tmp_path, retention_seconds=1.0) as (api, _):
        client = openai_of(api)
        batch = run(client, [line("a"), b"bad"], window="1s")

        def left() -> list[int]:
            with closing(Database.open(api.store)) as database, database.read() as tx:
                return [
                    int(tx.scalar(select(func.count()).select_from(table)) or 0)
                    for table in (file_batches, batch_lines, files, jobs)
                ]

        eventually(lambda: left() == [0, 0, 0, 0], "everything is removed")
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve(batch.id)


def test_a_block_with_a_line_that_takes_too_much_is_read_in_parts(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines before and behind it are answered, and it is refused as if it were sent alone."""
    monkeypatch.setattr(feeder, "SHORT_BYTES", 0)
    process = api.app.state.service.text_process
    read_body = process.read

    async def refuse_heavy(tenant: str, function: Any, body: bytes, *given: Any) -> Any:
        if b"heavy" in body:
            raise RequestError(ErrorCode.REQUEST_TOO_LARGE, "reading the body took too long")
        return await read_body(tenant, function, body, *given)

    monkeypatch.setattr(process, "read", refuse_heavy)
    client = openai_of(api)
    names = [f"r{n}" for n in range(20)]
    names[11] = "heavy"
    batch = run(client, [line(name) for name in names])
    assert [one["custom_id"] for one in read(client, batch.output_file_id)] == [n for n in names if n != "heavy"]
    assert errors_of(read(client, batch.error_file_id)) == [("heavy", 413, "request_too_large", None)]
