"""Tenants can't see each other: every route answers for a job of another tenant exactly as for a missing one."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

import jobs.queue.ending
import jobs.queue.read
import jobs.webhooks.delivery_log
from jobs.store.database import Database
from jobs.store.identifiers import new_file_batch_id, new_file_id, new_job_id
from jobs.tenancy.keys import Scope, create_key
from jobs.tenancy.tenants import set_tenant
from tests.api.every_route import BATCH, BODY, WEBHOOK_BODY, delivery_of, made, upload
from tests.api.requests.uploads.uploading import body as lines
from tests.api.serving import RunningApi, StandInWorker, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import quick_on

ROOT = Path(__file__).parents[3]
CHANGING = {"x-request-id", "date", "x-typesafe-request-id"}
"""Headers that differ in every response."""

Fresh = tuple[RunningApi, StandInWorker]


@pytest.fixture
def tenants(fresh: Fresh) -> Iterator[dict[str, httpx2.Client]]:
    """Clients of two tenants."""
    api, _ = fresh
    store = Database.open(api.store)
    clients = {name: api.client_with(create_key(store, name, name, frozenset(Scope))[0]) for name in ("acme", "bolt")}
    yield clients
    for client in clients.values():
        client.close()
    store.close()


def seen(response: httpx2.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Return all parts of a response by which it could be told from another."""
    headers = [(name, value) for name, value in response.headers.multi_items() if name not in CHANGING]
    return response.status_code, response.content, headers


@quick_on("sqlite")
def test_a_job_of_another_tenant_is_answered_like_a_missing_one_on_every_route(
    fresh: Fresh, tenants: dict[str, httpx2.Client]
) -> None:
    api, worker = fresh
    acme, bolt = tenants["acme"], tenants["bolt"]
    done = acme.post("/v1/jobs", json=WEBHOOK_BODY).json()["id"]
    assert acme.get(f"/v1/jobs/{done}", headers={"Prefer": "wait=10"}).json()["status"] == "succeeded"
    worker.gate.clear()
    waiting = acme.post("/v1/jobs", json=BODY).json()["id"]
    call = acme.post("/v1/score", json=BODY | {"timeout": 0.01}).headers["location"].rpartition("/")[2]
    delivery = delivery_of(acme, done)
    file_id = made(upload(acme))
    batch_id = made(acme.post("/v1/batches", json=BATCH | {"input_file_id": file_id}))
    document = api.client.get("/openapi.json").json()
    walked = 0
    for path, methods in document["paths"].items():
        if not {"{job_id}", "{file_id}", "{batch_id}"} & set(re.findall(r"{.*?}", path)):
            continue
        for method in methods:
            for headers in ({}, {"Prefer": "wait=1"}, {"Accept": "application/x-ndjson"}):

                def ask(
                    job_id: str,
                    file_id: str,
                    batch_id: str,
                    method: str = method,
                    path: str = path,
                    headers: dict[str, str] = headers,
                ) -> tuple[int, bytes, list[tuple[str, str]]]:
                    ids = {"job_id": job_id, "file_id": file_id, "batch_id": batch_id, "delivery_id": delivery}
                    return seen(bolt.request(method, path.format(**ids), headers=headers))

                missing = ask(new_job_id(), new_file_id(), new_file_batch_id())
                assert missing[0] == 404, (method, path, missing)
                for job_id in (done, waiting, call, "job_short", "nonsense"):
                    assert ask(job_id, file_id, batch_id) == missing, (method, path, job_id)
                assert ask(done, "nonsense", "nonsense") == missing, (method, path)
            walked += 1
    assert walked >= 6
    for job_id, status in ((done, "succeeded"), (waiting, "queued"), (call, "queued")):
        assert acme.get(f"/v1/jobs/{job_id}").json()["status"] == status, "the job is unchanged"
    assert acme.get(f"/v1/files/{file_id}/content").status_code == 200
    for path in ("/v1/jobs", "/v1/files", "/v1/batches"):
        assert bolt.get(path).json()["data"] == [], path
    assert bolt.get("/v1/jobs", params={"batch": batch_id}).status_code == 404
    foreign = bolt.post("/v1/batches", json=BATCH | {"input_file_id": file_id})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "file_not_found")
    assert {job["id"] for job in acme.get("/v1/jobs").json()["data"]} == {done, waiting}
    worker.gate.set()


def test_an_idempotency_key_is_separate_for_each_tenant(fresh: Fresh, tenants: dict[str, httpx2.Client]) -> None:
    key = {"Idempotency-Key": "of-both"}
    answers = [client.post("/v1/jobs", json=BODY, headers=key) for client in tenants.values()]
    assert len({answer.json()["id"] for answer in answers}) == 2
    assert not any("idempotency-replayed" in answer.headers for answer in answers)


@quick_on("sqlite")
def test_a_quota_limits_the_jobs_calls_and_uploads_of_its_tenant_only(
    fresh: Fresh, tenants: dict[str, httpx2.Client]
) -> None:
    api, worker = fresh
    store = Database.open(api.store)
    set_tenant(store, "acme", max_waiting_tokens=100)
    store.close()
    worker.gate.clear()
    acme, bolt = tenants["acme"], tenants["bolt"]
    big = BODY | {"items": [f" France is {n}" for n in range(1_000)]}
    too_large = acme.post("/v1/jobs", json=big)
    assert (too_large.status_code, too_large.json()["error"]["code"]) == (413, "request_too_large")
    # Of a query that jobs share, a recount finds less work than was charged for, and there would be room again.
    other_queries = (BODY | {"query": f"{n:03} The capital of"} for n in count())
    while (answer := acme.post("/v1/jobs", json=next(other_queries))).status_code == 202:
        pass
    full = [
        answer,
        acme.post("/v1/score", json=next(other_queries)),
        acme.post("/v1/jobs", content=lines(BODY["items"] * 4), headers={"Content-Type": "application/x-ndjson"}),
    ]
    for refused in full:
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded"), refused.text
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
    assert acme.get("/v1/jobs?status=receiving").json()["data"] == [], "the refused upload left nothing behind"
    assert bolt.post("/v1/jobs", json=big).status_code == 202
    worker.gate.set()


def _called_with_a_job_id(module: Any) -> dict[str, inspect.Signature]:
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {name: inspect.signature(function) for name, function in functions if function.__module__ == module.__name__}
    return {name: signature for name, signature in own.items() if "job_id" in signature.parameters}


def test_every_function_that_reads_or_changes_one_job_takes_its_tenant() -> None:
    for module in (jobs.queue.read, jobs.queue.ending, jobs.webhooks.delivery_log):
        found = _called_with_a_job_id(module)
        assert found
        for name, signature in found.items():
            assert "tenant" in signature.parameters, f"{module.__name__}.{name}"


def test_only_one_module_checks_the_tenant_of_a_job() -> None:
    """Any other condition on ``jobs.c.tenant`` would be a second rule."""
    askers = set()
    for path in (ROOT / "jobs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and ast.unparse(node.left) == "jobs.c.tenant":
                askers.add(path.stem)
    reasons = {
        "quotas": "counts waiting work",
        "statistics": "counts waiting work",
        "stored_bytes": "adds up",
        "tenant_removal": "removes all",
    }
    assert askers == {"ownership", *reasons}


def test_only_the_key_of_a_request_decides_its_tenant(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, host="0.0.0.0") as (api, _):
        job = api.submit(**BODY, tenant="acme", metadata={"tenant": "acme"})
        store = Database.open(api.store)
        with api.client_with(create_key(store, "acme", "laptop", frozenset(Scope))[0]) as acme:
            assert acme.get(f"/v1/jobs/{job['id']}").status_code == 404
            assert acme.get(f"/v1/jobs/{job['id']}", headers={"X-Tenant": "default"}).status_code == 404
        store.close()
