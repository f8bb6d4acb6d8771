"""How batches live and end: cancelled, expired, delayed by a quota, listed, told of and removed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import func, select

from api.batches import feeder
from api.text_process.process import ReaderKilledError, TextProcess
from jobs.file_batches.tables import batch_lines, file_batches
from jobs.files.tables import files
from jobs.store.database import Database
from jobs.store.tables import jobs
from jobs.tenancy.keys import Scope, create_key
from jobs.tenancy.tenants import set_tenant
from tests.api.batches.running import (
    BODY,
    create,
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
from tests.api.text_process.works import be_killed_for_poison
from tests.api.tiny_model import TinyModel
from tests.databases import ON_BOTH, quick_on
from tests.webhooks.receivers import Receiver, status

Fresh = tuple[RunningApi, StandInWorker]


@ON_BOTH
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


def test_an_unknown_field_of_a_batch_is_a_warning_of_its_creation(api: RunningApi) -> None:
    client = openai_of(api)
    file = upload(client, [line("a")])
    created = create(client, file.id, extra_body={"colour": "red", "webhook": None})
    assert created.model_extra is not None
    assert created.model_extra["warnings"] == ['unknown field "colour" was ignored']
    assert "warnings" not in (ended(client, created.id).model_extra or {})
    assert "warnings" not in (create(client, file.id).model_extra or {})


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
    lines.insert(7, line("huge", BODY | {"items": [f" France is {n}" for n in range(100)]}))
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


def test_a_line_whose_process_is_always_killed_is_refused_and_the_others_are_answered(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder, "read_lines", be_killed_for_poison)
    monkeypatch.setattr(feeder, "PAUSE_SECONDS", 0.01)
    client = openai_of(api)
    lines = [line(name, BODY | {"unknown": "x" * 40_000}) for name in ("a", "b", "poison", "c", "d")]
    batch = run(client, lines)
    assert [one["custom_id"] for one in read(client, batch.output_file_id)] == ["a", "b", "c", "d"]
    assert errors_of(read(client, batch.error_file_id)) == [("poison", 413, "request_too_large", None)]


def test_a_line_whose_process_was_killed_once_is_read_again(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    async def killed_once(self: TextProcess, *given: Any) -> Any:
        tries.append("")
        if len(tries) == 1:
            raise ReaderKilledError
        return await read_in_process(self, *given)

    read_in_process = TextProcess.read
    monkeypatch.setattr(TextProcess, "read", killed_once)
    monkeypatch.setattr(feeder, "PAUSE_SECONDS", 0.01)
    client = openai_of(api)
    batch = run(client, [line("a", BODY | {"unknown": "x" * 200_000})])
    assert ([one["custom_id"] for one in read(client, batch.output_file_id)], len(tries)) == (["a"], 2)


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
        eventually(lambda: left(api) == [0, 0, 0, 0], "everything is removed")
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve(batch.id)


def left(api: RunningApi) -> list[int]:
    """Return how many batches, lines, files and jobs are stored."""
    with closing(Database.open(api.store)) as database, database.read() as tx:
        tables = (file_batches, batch_lines, files, jobs)
        return [int(tx.scalar(select(func.count()).select_from(table)) or 0) for table in tables]


@ON_BOTH
def test_a_deleted_batch_goes_at_once_with_its_files_and_jobs_whatever_it_was_doing(
    fresh: Fresh, small_blocks: None
) -> None:
    api, worker = fresh
    client = openai_of(api)
    done = run(client, [line("a"), b"bad"])
    worker.gate.clear()
    waiting = create(client, upload(client, [line(f"r{n}") for n in range(60)]).id)
    eventually(lambda: left(api)[3] > 1, "some lines are jobs")
    others = api.client.get("/v1/jobs", params={"batch": waiting.id}).json()["data"]
    for batch in (done, waiting):
        path = f"/v1/batches/{batch.id}"
        assert api.client.delete(path).json() == {"id": batch.id, "object": "batch", "deleted": True}
        for missing in (path, f"/v1/files/{batch.input_file_id}", f"/v1/files/{batch.output_file_id}"):
            assert api.client.get(missing).status_code == 404
        assert api.client.delete(path).status_code == 404
    paths = [f"/v1/jobs/{job['id']}" for job in others]
    eventually(lambda: {api.client.get(path).status_code for path in paths} == {404}, "its jobs are gone")
    worker.gate.set()
    eventually(lambda: left(api) == [0, 0, 0, 0], "everything is removed")


def test_an_input_file_that_another_batch_has_outlives_a_deleted_batch(fresh: Fresh) -> None:
    api, _ = fresh
    client = openai_of(api)
    file = upload(client, [line("a")])
    first, second = (create(client, file.id) for _ in range(2))
    ended(client, first.id)
    assert api.client.delete(f"/v1/batches/{first.id}").status_code == 200
    assert ended(client, second.id).status == "completed"
    assert client.files.retrieve(file.id).id == file.id
