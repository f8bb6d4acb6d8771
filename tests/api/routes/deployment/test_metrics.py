"""The metrics of the API."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from jobs.queue.worker_registry import live_workers, register
from jobs.store.records import WorkerRecord
from tests.api.requests.uploads.uploading import body as uploaded_lines
from tests.api.requests.uploads.uploading import send
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import quick_on
from tests.services import PostgresServer, RedisServer

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}
GAUGES_OF_SQL = {
    "scoreline_waiting_chunks",
    "scoreline_waiting_tokens",
    "scoreline_oldest_waiting_seconds",
    "scoreline_live_workers",
    "scoreline_live_workers_tokens_per_second",
    "scoreline_live_workers_different_weights",
    "scoreline_running_batches",
    "scoreline_overdue_deliveries",
    "scoreline_disabled_endpoints",
}

SCRAPES = 12

Samples = dict[str, float]


def scrape(api: RunningApi) -> Samples:
    """Return all samples by name and labels."""
    response = api.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        sample.name
        + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items()) if name != "le"): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every scrape count anew, and every sweep check the invariants."""
    monkeypatch.setattr("api.metrics.STATISTICS_SECONDS", 0.0)
    monkeypatch.setattr("api.caching.MAX_TIME_SHARE", 1e9)
    monkeypatch.setattr("jobs.invariant_watch.EVERY_SECONDS", 0.0)


@pytest.fixture
def served(uncached: None, fresh: tuple[RunningApi, StandInWorker]) -> tuple[RunningApi, StandInWorker]:
    return fresh


def test_requests_are_counted_by_route_and_not_by_path(
    served: tuple[RunningApi, StandInWorker],
) -> None:
    api, _ = served
    job = api.wait(api.submit(**BODY)["id"])
    for _ in range(2):
        api.client.get(f"/v1/jobs/{job['id']}/scores")
    api.client.get("/v1/jobs/job_0")
    api.client.get("/nowhere/at/all")
    api.client.put("/v1/score")
    api.client.request("PROPFIND", "/v1/score")
    samples = scrape(api)
    requests = {
        name.removeprefix("scoreline_http_requests_total "): value
        for name, value in samples.items()
        if name.startswith("scoreline_http_requests_total")
    }
    assert requests["method=POST route=/v1/jobs status=202"] == 1
    assert requests["method=GET route=/v1/jobs/{job_id}/scores status=200"] == 2
    assert requests["method=GET route=/v1/jobs/{job_id} status=404"] == 1
    assert requests["method=GET route=other status=404"] == 1
    assert requests["method=other route=/v1/score status=405"] == 2  # a method that others have, and one of nobody
    seconds = "scoreline_http_request_duration_seconds"
    assert samples[f"{seconds}_count method=POST route=/v1/jobs"] == 1
    assert samples[f"{seconds}_sum method=POST route=/v1/jobs"] > 0


@quick_on("postgres")
def test_no_label_contains_a_job_a_tenant_or_text_of_a_client(served: tuple[RunningApi, StandInWorker]) -> None:
    api, _ = served
    job = api.wait(api.submit(**BODY)["id"])
    api.client.get(f"/v1/jobs/{job['id']}")
    api.client.get("/made-up")
    body = api.client.get("/metrics").text
    for word in ("job_0", job["id"], "default", "made-up", "France"):
        assert word not in body
    names = {line.split("{")[0].split()[0] for line in body.splitlines() if not line.startswith("#")}
    assert {name for name in names if not re.match("scoreline_", name)} == set()


@quick_on("postgres")
def test_a_job_is_counted_once_when_accepted_and_once_when_ended(
    served: tuple[RunningApi, StandInWorker],
) -> None:
    api, worker = served
    keyed = {"Idempotency-Key": "key-1"}
    job_id = api.submit(headers=keyed, **BODY)["id"]
    api.submit(headers=keyed, **BODY)
    api.wait(job_id)
    api.wait(job_id)
    api.score(**BODY)
    worker.gate.clear()
    cancelled = api.submit(**BODY, priority="bulk")["id"]
    for _ in range(2):
        api.client.post(f"/v1/jobs/{cancelled}/cancel")
    api.submit(**BODY, expires_in=0.01)
    eventually(lambda: "scoreline_jobs_ended_total status=expired" in scrape(api), "a sweep counts it")
    samples = scrape(api)
    assert {
        name: value for name, value in samples.items() if name.startswith("scoreline_jobs") and "total" in name
    } == {
        "scoreline_jobs_accepted_total origin=job priority=normal": 2,
        "scoreline_jobs_accepted_total origin=call priority=interactive": 1,
        "scoreline_jobs_accepted_total origin=job priority=bulk": 1,
        "scoreline_jobs_ended_total status=succeeded": 2,
        "scoreline_jobs_ended_total status=cancelled": 1,
        "scoreline_jobs_ended_total status=expired": 1,
    }


def test_the_queue_metrics_show_what_the_database_holds(served: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = served
    worker.gate.clear()
    samples = scrape(api)
    assert samples["scoreline_database_up"] == 1
    assert samples["scoreline_live_workers model=tiny"] == 1
    assert samples["scoreline_running_batches"] == 0
    assert samples["scoreline_waiting_chunks class=interactive model=tiny"] == 0
    for _ in range(3):
        api.submit(**BODY)
    api.submit(**BODY, priority="interactive")
    with api.app.state.service.store.database.write() as connection:
        connection.execute(text("UPDATE jobs SET created_at = created_at - 100 WHERE priority = 'interactive'"))
        connection.execute(text("UPDATE workers SET tokens_per_second = 12.5"))
        connection.execute(text("INSERT INTO batches VALUES ('spent', 'worker', 9e9)"))
    samples = scrape(api)
    assert samples["scoreline_waiting_chunks class=other model=tiny"] == 3
    assert samples["scoreline_waiting_chunks class=interactive model=tiny"] == 1
    assert samples["scoreline_waiting_tokens class=other model=tiny"] >= 3
    assert 100 <= samples["scoreline_oldest_waiting_seconds class=interactive model=tiny"] < 130
    assert 0 <= samples["scoreline_oldest_waiting_seconds class=other model=tiny"] < 30
    assert samples["scoreline_live_workers_tokens_per_second model=tiny"] == 12.5
    assert samples["scoreline_running_batches"] == 0, "that batch has no claimed chunks"


def test_different_weights_of_live_workers_are_counted_for_each_model(served: tuple[RunningApi, StandInWorker]) -> None:
    api, _ = served
    service = api.app.state.service
    [here] = live_workers(service.store.database, 20.0)
    name = "scoreline_live_workers_different_weights model="
    register(service.store.database, replace(here, id="the same"))
    assert scrape(api)[name + "tiny"] == 1
    register(service.store.database, replace(here, id="another", weights_fingerprint="5" * 64))
    other_model = replace(here.card, name="other")
    register(service.store.database, WorkerRecord("of another model", other_model, "6" * 64, "none", "float32"))
    samples = scrape(api)
    assert (samples[name + "tiny"], samples[name + "other"]) == (2, 1)
    with service.store.database.write() as connection:
        connection.execute(text("UPDATE workers SET last_seen = last_seen - 1000 WHERE id = 'another'"))
    assert scrape(api)[name + "tiny"] == 1, "a worker that has gone does not count"


def test_awaited_jobs_are_counted(served: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = served
    assert scrape(api)["scoreline_awaited_jobs"] == 0
    worker.gate.clear()
    job_id = api.submit(**BODY)["id"]
    waiting = threading.Thread(target=lambda: api.wait(job_id))
    waiting.start()
    eventually(lambda: scrape(api)["scoreline_awaited_jobs"] == 1, "a request waits")
    worker.gate.set()
    waiting.join(20)


def test_a_violated_invariant_is_shown(served: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = served
    worker.gate.clear()
    name = "scoreline_invariant_violated check=waiting_chunk_with_batch"
    eventually(lambda: scrape(api).get(name) == 0, "the invariants were checked")
    api.submit(**BODY)
    with api.app.state.service.store.database.write() as connection:
        connection.execute(text("UPDATE chunks SET batch_id = 'batch'"))
    eventually(lambda: scrape(api)[name] == 1, "the violation is shown")
    broken = {key for key, value in scrape(api).items() if key.startswith("scoreline_invariant") and value}
    assert broken == {name}


def test_scrapes_share_the_statistics_of_the_queue(api: RunningApi) -> None:
    before = scrape(api)
    api.submit(**BODY)
    after = scrape(api)
    assert {name: after[name] for name in GAUGES_OF_SQL & after.keys()} == {
        name: before[name] for name in GAUGES_OF_SQL & before.keys()
    }


def test_scrapes_at_the_same_time_are_made_by_one_thread(
    fresh: tuple[RunningApi, StandInWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = fresh
    made, free, at_once = 0, threading.Semaphore(), list[bool]()
    all_asked = threading.Event()

    def made_once_all_have_asked(registry: CollectorRegistry) -> bytes:
        nonlocal made
        made += 1
        at_once.append(not free.acquire(blocking=False))
        assert all_asked.wait(60)
        text = generate_latest(registry)
        free.release()
        return text

    monkeypatch.setattr("api.metrics.generate_latest", made_once_all_have_asked)
    with ThreadPoolExecutor(SCRAPES) as pool:
        scrapes = [pool.submit(scrape, api) for _ in range(SCRAPES)]
        eventually(lambda: made >= 1, "a text is under way")
        for _ in range(SCRAPES):  # answered in turn with what was sent before, by an event loop that is free
            assert api.client.get("/livez").status_code == 200
        all_asked.set()
        assert all(one.result()["scoreline_database_up"] == 1 for one in scrapes)
    assert not any(at_once)
    assert made < SCRAPES


def test_an_outage_of_the_database_leaves_the_other_metrics(
    uncached: None, model: TinyModel, postgres_url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    with running_api(model.directory, postgres_url, tmp_path, with_worker=False) as (api, _):
        api.submit(**BODY)
        assert "scoreline_waiting_chunks class=other model=tiny" in scrape(api)
        postgres.stop()
        try:
            samples = scrape(api)
            assert samples["scoreline_database_up"] == 0
            assert not {name.partition(" ")[0] for name in samples} & GAUGES_OF_SQL
            assert samples["scoreline_http_requests_total method=POST route=/v1/jobs status=202"] == 1
        finally:
            postgres.start()
        assert scrape(api)["scoreline_database_up"] == 1


@pytest.mark.slow
def test_a_database_without_its_schema_is_not_up(model: TinyModel, tmp_path: Path) -> None:
    with running_api(model.directory, f"sqlite:///{tmp_path / 'empty.db'}", tmp_path, with_worker=False) as (api, _):
        assert scrape(api)["scoreline_database_up"] == 0


def test_lost_rings_are_counted(model: TinyModel, sqlite_url: str, redis_server: RedisServer, tmp_path: Path) -> None:
    settings = {"redis_url": redis_server.url, "bell_socket": None}
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **settings) as (api, _):
        assert scrape(api)["scoreline_rings_lost_total"] == 0
        redis_server.stop()
        try:
            api.submit(**BODY)
            eventually(lambda: scrape(api)["scoreline_rings_lost_total"] >= 1, "the ring is lost")
        finally:
            redis_server.start()


def test_tenants_have_names_only_where_the_operator_allows_it(
    uncached: None, model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, metric_tenants=1) as (api, _):
        api.submit(**BODY)
        assert send(api, uploaded_lines([" France", " Spain"])).status_code == 202
        samples = scrape(api)
        assert samples["scoreline_tenant_accepted_jobs_total tenant=default"] == 2
        assert samples["scoreline_tenant_accepted_items_total tenant=default"] == 3
        assert samples["scoreline_tenant_accepted_tokens_total tenant=default"] > 3
