"""What a tenant stores has a price that is known before it is stored, and an upper bound."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import func, select

from api.callers import storage_quota
from jobs.file_batches.tables import batch_lines, file_batches
from jobs.files.tables import files
from jobs.store.database import Database
from jobs.store.tables import chunk_inputs, chunk_scores, chunks, jobs, prefixes
from jobs.stored_bytes import StoredBytes, count_stored
from judgement.artefacts import Kind, write
from tests.api.artefacts import PROMPT, THREE, artefact, serving_artefacts
from tests.api.batches.running import BODY, create, ended, line, openai_of, read, run, upload
from tests.api.serving import Json, RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import quick_on

MOST = 200_000
LABELS = list(range(250))
LARGE: Json = {"query": "The capital of", "items": [""] * 60, "label_token_ids": LABELS}  # 120 kB of scores

Fresh = tuple[RunningApi, StandInWorker]


@pytest.fixture
def small(model: TinyModel, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fresh]:
    """A server where a tenant may store little, which adds up what it stores for each request."""
    monkeypatch.setattr(storage_quota, "GOOD_FOR_SECONDS", 0.0)
    monkeypatch.setattr(storage_quota, "MAX_GOOD_FOR_SECONDS", 0.0)
    limits: dict[str, Any] = {"max_stored_bytes_per_tenant": MOST}
    with running_api(model.directory, store_url, tmp_path, **limits) as (api, worker):
        assert worker is not None
        yield api, worker


def refusal(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def stored(api: RunningApi) -> StoredBytes:
    with closing(Database.open(api.store)) as database:
        return count_stored(database, "default")


@quick_on("postgres")
def test_a_job_that_would_store_too_much_is_refused_and_its_dry_run_says_what_it_stores(small: Fresh) -> None:
    api, _ = small
    assert refusal(api.client.post("/v1/jobs", json=LARGE | {"items": [""] * 200})) == (413, "request_too_large")
    dry_run = api.client.post("/v1/jobs", json=LARGE | {"dry_run": True}).json()
    assert dry_run["waits_for"] == []
    key = {"Idempotency-Key": "once"}
    job = api.client.post("/v1/jobs", json=LARGE, headers=key).json()
    assert dry_run["stored_bytes"] == stored(api).kept > 60 * 250 * 8
    refused = api.client.post("/v1/jobs", json=LARGE)
    assert refusal(refused) == (429, "quota_exceeded")
    assert refused.headers["x-should-retry"] == "false"
    assert int(refused.headers["retry-after"]) > 0
    noted = LARGE | {"dry_run": True, "metadata": {f"{n}": "\N{SNOWMAN}" * 500 for n in range(16)}}
    assert api.client.post("/v1/jobs", json=noted).json()["stored_bytes"] > dry_run["stored_bytes"] + 16 * 500 * 6
    assert 'scoreline_refused_requests_total{limit="max_stored_bytes_per_tenant"}' in api.client.get("/metrics").text
    assert api.client.post("/v1/jobs", json=LARGE, headers=key).json()["id"] == job["id"], "it is stored already"
    [waits] = api.client.post("/v1/jobs", json=LARGE | {"dry_run": True}).json()["waits_for"]
    assert waits["what"] == "storage"
    assert api.client.post("/v1/jobs", json=BODY).status_code == 202, "a small job is not counted"
    assert api.client.post("/v1/score", json=LARGE | {"items": [""] * 20}).status_code == 200, "jobs stop no calls"
    assert stored(api).calls > 20 * 250 * 8
    api.client.delete(f"/v1/jobs/{job['id']}").raise_for_status()
    assert stored(api).kept == 0
    assert api.client.post("/v1/jobs", json=LARGE).status_code == 202


@quick_on("sqlite")
def test_an_upload_that_would_store_too_much_is_refused_and_leaves_nothing(small: Fresh) -> None:
    api, _ = small
    lines = "\n".join([json.dumps({"query": "The capital of", "label_token_ids": LABELS}), *['""'] * 20_000])
    headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
    response = api.client.post("/v1/jobs", content=gzip.compress(lines.encode()), headers=headers)
    assert refusal(response) == (413, "request_too_large")
    assert stored(api) == StoredBytes(0, 0)


@quick_on("sqlite")
def test_calls_that_are_kept_are_held_to_as_many_bytes_of_their_own(small: Fresh) -> None:
    api, _ = small
    assert api.client.post("/v1/score", json=LARGE).status_code == 200
    assert refusal(api.client.post("/v1/score", json=LARGE)) == (429, "quota_exceeded")
    assert api.client.post("/v1/jobs", json=LARGE).status_code == 202, "calls stop no jobs"


@quick_on("postgres")
def test_a_batch_whose_tenant_stores_too_much_says_so_waits_and_goes_on_when_there_is_room(
    small: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.batches.work.MAX_PAUSE_SECONDS", 0.05)
    api, _ = small
    client = openai_of(api, max_retries=0)
    job = api.submit(**LARGE)
    lines = [line(f"r{n}", LARGE | {"items": [""] * 3}) for n in range(6)]
    batch = create(client, upload(client, lines).id)

    def said() -> str | None:
        found = client.batches.retrieve(batch.id)
        assert found.status in ("validating", "in_progress")
        return None if found.errors is None or not found.errors.data else found.errors.data[0].code

    eventually(lambda: said() == "quota_exceeded", "the batch says why it waits")
    assert 0 < stored(api).kept <= MOST
    with pytest.raises(openai.RateLimitError):
        client.files.create(file=("more", b"x" * 60_000), purpose="batch")
    api.client.delete(f"/v1/jobs/{job['id']}").raise_for_status()
    done = ended(client, batch.id)
    assert (done.status, done.errors) == ("completed", None)
    assert [one["custom_id"] for one in read(client, done.output_file_id)] == [f"r{n}" for n in range(6)]
    with closing(Database.open(api.store)) as database, database.read() as tx:
        assert tx.scalar(select(file_batches.c.reserved_bytes)) == 0


def test_a_line_that_no_tenant_may_store_is_refused_and_the_others_are_answered(small: Fresh) -> None:
    api, _ = small
    client = openai_of(api)
    lines = [line("a"), line("huge", LARGE | {"return_logits": True}), line("b")]
    done = ended(client, create(client, upload(client, lines).id).id)
    assert [one["custom_id"] for one in read(client, done.output_file_id)] == ["a", "b"]
    [error] = read(client, done.error_file_id)
    assert (error["custom_id"], error["response"]["body"]["error"]["code"]) == ("huge", "request_too_large")


VARIANTS: list[tuple[str, Json]] = [
    ("/v1/score", LARGE),
    ("/v1/score", LARGE | {"apply_softmax": True}),
    ("/v1/score", LARGE | {"return_logprobs": True, "return_logits": True}),
    ("/v1/score", LARGE | {"label_token_ids": [[n, n, 70] for n in range(60)]}),
    ("/v1/score", LARGE | {"items": ["a", "b"] * 20, "item_first": True}),
    (
        "/v1/score",
        {
            "query": "The capital of",
            "items": ["a", " b"] * 20,
            "labels": [" positive", " negative"],
            "label_scoring": "sequence",
            "label_normalization": "tokens",
        },
    ),
    ("/v1/likelihood", {"query": "The", "items": [" capital of France"] * 40, "return_token_logprobs": True}),
    ("/v1/likelihood", {"query": "The", "items": [" capital of France"] * 40, "return_tokens": True}),
    (
        "/v1/systemone",
        {
            "state": "London",
            "questions": {
                "n" * 400: {"type": "score", "criteria": ["a" * 9, {"b": "é" * 9}] * 4},
                **{f"q{n}": {"type": "choice", "criteria": dict.fromkeys("abcdefghij")} for n in range(20)},
                **{f"n{n}": {"type": "noul"} for n in range(20)},
            },
        },
    ),
]


@pytest.mark.parametrize(("path", "body"), VARIANTS)
def test_a_line_stores_what_it_is_charged_and_no_more_is_written_than_was_reserved(
    api: RunningApi, path: str, body: Json
) -> None:
    client = openai_of(api)
    name = f"{path} {json.dumps(body)}"[:500]
    file = upload(client, [line(name, body, url=path)])
    batch = ended(client, create(client, file.id, path).id)
    assert batch.error_file_id is None
    with closing(Database.open(api.store)) as database, database.read() as tx:
        of_line = select(batch_lines.c.job_id, batch_lines.c.answer_bytes).where(batch_lines.c.batch_id == batch.id)
        job_id, reserved = tx.execute(of_line).one()
        written = tx.scalar(select(files.c.bytes).where(files.c.id == batch.output_file_id))
        charged = tx.scalar(select(jobs.c.stored_bytes).where(jobs.c.id == job_id))
        of_job = tx.execute(
            select(func.length(prefixes.c.tokens), func.length(jobs.c.item_labels), func.length(jobs.c.form))
            .join(jobs)
            .where(jobs.c.id == job_id)
        ).one()
        of_chunks = tx.execute(
            select(
                *(func.length(column) for column in (chunk_inputs.c.rows, chunk_inputs.c.continuations)),
                *(func.length(chunk_scores.c[name]) for name in ("logits", "logprobs", "targets")),
            )
            .select_from(chunks)
            .join(chunk_inputs)
            .join(chunk_scores)
            .where(chunks.c.job_id == job_id)
        ).all()
        held = sum(size or 0 for row in (of_job, *of_chunks) for size in row)
        assert charged is not None
        assert written is not None
        arrays = 1 + 2 * len(of_chunks)
        assert charged <= held <= charged + 4 * arrays, "an array may say how long it is"
        assert written <= reserved <= 3 * written + 10_000


def test_what_comes_of_an_artefact_is_reserved_for_a_line(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    names = ("in the opinion of most, " * 9 + "yes", "é" * 300, "not so sure")
    question: Json = {"type": "choice", "criteria": dict.fromkeys("abc")}
    asked = [f"q{n}" for n in range(9)]
    prompts: dict[str, Json] = {
        "items": PROMPT | {"labels": THREE},
        "ranking": {"query": None, "labels": [], "template": "yes-no"},
        "question": {"questions": {"q": question}, "is_object": False},
    }
    bodies: list[tuple[str, Json]] = [
        ("/v1/score", PROMPT | {"labels": THREE, "items": ["a"] * 90, "threshold": "items"}),
        ("/v1/rerank", {"query": "q", "documents": ["a"] * 90, "return_documents": False, "threshold": "ranking"}),
        (
            "/v1/systemone",
            {"state": "s", "questions": dict.fromkeys(asked, question), "threshold": dict.fromkeys(asked, "question")},
        ),
    ]
    with serving_artefacts(sqlite_template, tmp_path_factory) as (api, folder, fingerprint):
        for name, prompt in prompts.items():
            labels = names[:2] if name == "ranking" else names
            made = artefact(fingerprint, prompt=prompt, labels=labels)
            parameters = {"threshold": 0.3, "set_bound": 0.0}
            threshold = replace(made, kind=Kind.THRESHOLD, parameters=parameters, calibration=made)
            write(threshold, folder / f"{name}.json")
        client = openai_of(api)
        for path, body in bodies:
            batch = run(client, [line("a", body, url=path)], path)
            with closing(Database.open(api.store)) as database, database.read() as tx:
                reserved = tx.scalar(select(batch_lines.c.answer_bytes).where(batch_lines.c.batch_id == batch.id))
                written = tx.scalar(select(files.c.bytes).where(files.c.id == batch.output_file_id))
            assert written is not None, read(client, batch.error_file_id)
            assert reserved is not None
            assert written <= reserved <= 3 * written + 10_000, path
