"""A dry run says what a job would take, and stores nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from sqlalchemy import select

from jobs.queue.worker_registry import live_workers, register
from jobs.store.tables import metadata
from jobs.tenancy.keys import Scope, create_key
from jobs.tenancy.quotas import recount
from jobs.tenancy.tenants import create_tenant
from scoring.planning.description import describe
from scoring.planning.planner import Planner
from scoring.work import work_of_prefix
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.scoring.planning.test_planner import ESTIMATOR, INVARIANT

Fresh = tuple[RunningApi, StandInWorker]

QUERY = "The capital of France is Paris. " * 12
BODY: dict[str, Any] = {"query": QUERY, "items": [" France is", " Japan is", ""], "label_token_ids": [70, 71]}


def try_out(api: RunningApi, **fields: Any) -> dict[str, Any]:
    response = api.client.post("/v1/jobs", json=BODY | {"dry_run": True} | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def plan_like_a_worker(api: RunningApi, ratio: float | None = None) -> None:
    """Have the worker of the API say how it plans."""
    database = api.app.state.service.store.database
    [known] = live_workers(database, 20.0)
    planning = {"planner": describe(Planner(INVARIANT, ESTIMATOR)), "claim_seconds": 4.0}
    register(database, replace(known, id="planner", planning=planning, estimate_ratio=ratio))


def contents(api: RunningApi) -> dict[str, list[Any]]:
    """Return all rows of all tables, but not when workers were last seen."""
    database = api.app.state.service.store.database
    with database.read() as tx:
        return {
            table.name: sorted(map(repr, tx.execute(select(table))))
            for table in metadata.sorted_tables
            if table.name != "workers"
        }


def test_nothing_is_stored_and_no_quota_is_charged(on_sqlite: Fresh) -> None:
    api, worker = on_sqlite
    worker.gate.clear()
    database = api.app.state.service.store.database
    create_tenant(database, "acme", max_waiting_tokens=5_000)
    key = create_key(database, "acme", "of acme", frozenset(Scope))[0]
    with api.client_with(key) as client:
        client.get("/v1/jobs")  # so that the use of the key is known
        recount(database, "acme")  # what waits of a tenant is counted when it is needed for the first time
        before = contents(api)
        for _ in range(3):
            headers = {"Idempotency-Key": "dry-run"}
            response = client.post("/v1/jobs", json=BODY | {"dry_run": True}, headers=headers)
            assert response.status_code == 200, response.text
        assert contents(api) == before
        job = client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "dry-run"})
        assert (job.status_code, job.headers.get("idempotency-replayed")) == (202, None)
        assert client.get("/v1/jobs").json()["data"][0]["id"] == job.json()["id"]


def test_the_tokens_are_those_that_the_job_then_has(on_sqlite: Fresh, model: TinyModel) -> None:
    api, _ = on_sqlite
    plan_like_a_worker(api)
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"items": []},
        {"items": [f"{n} " + "x" * 50 for n in range(40)]},
        {"item_first": True},
    )
    for fields in variants:
        dry = try_out(api, **fields)
        done = api.wait(api.submit(**BODY | fields)["id"])
        assert dry["usage"]["prompt_tokens"] == done["usage"]["prompt_tokens"]
        assert dry["total_items"] == done["progress"]["total_items"]
        assert sum(part["items"] for part in dry["plan"]) == dry["total_items"]
    equal = {"items": [" Paris", " Rome", " Paris"]}
    dry, done = try_out(api, **equal), api.wait(api.submit(**BODY | equal)["id"])
    assert dry["usage"]["reused_items"] == done["usage"]["reused_items"] == 1
    assert sum(part["items"] for part in dry["plan"]) == 2, "an equal item is not computed"
    assert dry["work"] == try_out(api, items=equal["items"][:2])["work"]
    prefix = len(model.encode(QUERY))
    dry = try_out(api)
    [part] = dry["plan"]
    assert part["algorithm"] == "prefill_extend"
    assert prefix - 2 <= dry["usage"]["prompt_tokens_details"]["cached_tokens"] / 2 <= prefix
    assert dry["work"] > work_of_prefix(prefix)


def test_an_estimate_says_whether_it_rests_on_measurements(on_sqlite: Fresh) -> None:
    api, _ = on_sqlite
    assert (try_out(api)["plan"], try_out(api)["estimated_seconds"]) == (None, None)
    plan_like_a_worker(api)
    eventually(lambda: try_out(api)["plan"], "the API has seen the worker")
    stored = try_out(api)
    assert stored["calibrated"] is False
    assert stored["estimated_seconds"] > 0
    assert (stored["estimated_wait_seconds"], stored["waits_for"]) == (0.0, [])


def test_a_job_that_would_have_to_wait_is_told_for_what(on_sqlite: Fresh) -> None:
    api, worker = on_sqlite
    worker.gate.clear()
    job = api.submit(**BODY)

    def reasons() -> set[str]:
        return {reason["what"] for reason in try_out(api)["waits_for"]}

    eventually(lambda: reasons() == {"backlog"}, "the backlog is counted")
    api.client.post(f"/v1/jobs/{job['id']}/cancel")
    eventually(lambda: reasons() == set(), "the backlog is gone")


def test_without_a_worker_nobody_knows_how_long_it_takes(model: TinyModel, sqlite_url: str, tmp_path: Any) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False) as (api, _):
        dry = try_out(api)
    assert dry["usage"]["prompt_tokens"] > 0
    assert (dry["plan"], dry["estimated_seconds"], dry["estimated_wait_seconds"]) == (None, None, None)
    assert [reason["what"] for reason in dry["waits_for"]] == ["worker"]


def test_a_quota_refuses_what_it_would_always_refuse_and_names_what_it_would_refuse_now(on_sqlite: Fresh) -> None:
    api, worker = on_sqlite
    worker.gate.clear()
    database = api.app.state.service.store.database
    create_tenant(database, "acme", max_waiting_tokens=1_000)
    key = create_key(database, "acme", "of acme", frozenset(Scope))[0]
    with api.client_with(key) as client:
        many = BODY | {"items": [f"{n} " + "x" * 100 for n in range(100)], "dry_run": True}
        refused = client.post("/v1/jobs", json=many)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
        others = (BODY | {"query": f"{n:03} {QUERY}"} for n in count())  # a query that jobs share is charged once
        while client.post("/v1/jobs", json=next(others)).status_code == 202:
            pass
        found = client.post("/v1/jobs", json=BODY | {"dry_run": True}).json()
    assert "quota" in {reason["what"] for reason in found["waits_for"]}


def test_what_would_be_refused_is_refused(api: RunningApi) -> None:
    for body, code in (
        (BODY | {"items": None}, "missing_items"),
        (BODY | {"label_token_ids": [10**6]}, "token_id_exceeds_vocab"),
        (BODY | {"dry_run": "yes"}, "invalid_request"),
    ):
        response = api.client.post("/v1/jobs", json={"dry_run": True} | body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    lines = b'{"query": "a", "label_token_ids": [70], "dry_run": true}\n"b"\n'
    response = api.client.post("/v1/jobs", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_parameter")
    assert response.json()["error"]["param"] == "dry_run"
