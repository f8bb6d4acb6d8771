"""What a scoring worker tells a monitoring system, and the API of its pace."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from structlog.testing import capture_logs

from jobs.queue.worker_registry import live_workers
from jobs.store.records import JobStatus, WorkerRecord
from tests.services import free_port, wait_until
from tests.workers.conftest import CARD, Store, Worker
from tests.workers.engine_loop.test_process import Process
from tests.workers.engines import POISON, MadeUpEngine
from workers.engine_loop.heartbeat import Presence
from workers.engine_loop.metrics import Outcome, WorkerMetrics

StartWorker = Callable[..., Worker]


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        families = text_string_to_metric_families(response.read().decode())
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def outcomes(worker: Worker) -> dict[str, float]:
    """How many batches ended in each way, those of none left out."""
    counts = {
        outcome.value: worker.loop._metrics._registry.get_sample_value(
            "scoreline_worker_batches_total", {"outcome": outcome.value}
        )
        for outcome in Outcome
    }
    return {name: count for name, count in counts.items() if count}


def test_what_was_scored_is_counted(store: Store, start_worker: StartWorker) -> None:
    worker = start_worker(store)
    assert worker.loop.tokens_per_second is None
    store.wait_for(store.submit(chunks=3))
    wait_until(lambda: outcomes(worker) == {"finished": 1}, "the batch is counted")
    registry = worker.loop._metrics._registry
    assert registry.get_sample_value("scoreline_worker_scored_items_total") == 6
    assert registry.get_sample_value("scoreline_worker_computed_tokens_total") == 2 + 3 * 5
    assert (registry.get_sample_value("scoreline_worker_scoring_seconds_total") or 0) > 0
    assert worker.loop.tokens_per_second is not None


def test_a_batch_that_fails_and_one_that_is_given_back(store: Store, start_worker: StartWorker) -> None:
    job_id = store.submit(token=POISON)
    worker = start_worker(store)
    store.wait_for(job_id, JobStatus.FAILED)
    wait_until(lambda: outcomes(worker) == {"failed": 3}, "each try is counted")
    worker.engine.hold()
    store.submit(chunks=2)
    worker.engine.holding.wait(30)
    worker.stop()
    assert outcomes(worker) == {"failed": 3, "given_back": 1}


def test_a_batch_that_was_lost(sqlite_url: str, start_worker: StartWorker) -> None:
    store = Store(sqlite_url, lease_seconds=0.4)
    worker = start_worker(store, engine=MadeUpEngine.held())
    store.submit(chunks=2)
    assert worker.engine.holding.wait(30)
    with store.database.write() as connection:
        connection.execute(text("DELETE FROM batches"))
        connection.execute(text("UPDATE chunks SET state = 'waiting', batch_id = NULL"))
    with capture_logs() as logs:
        wait_until(lambda: any(line["event"].startswith("lost a batch") for line in logs), "it is noticed")
        worker.engine.let_go()
        wait_until(lambda: "lost" in outcomes(worker), "it is counted")
    assert outcomes(worker)["lost"] == 1


@pytest.fixture
def metrics() -> WorkerMetrics:
    return WorkerMetrics()


def test_it_is_offered_over_http_with_what_the_engine_keeps_of_queries(metrics: WorkerMetrics) -> None:
    port = free_port()
    counts = {"hits": 0, "prefills": 2}
    metrics.serve("127.0.0.1", port, lambda: counts)
    counts["hits"] = 5
    metrics.ended(Outcome.FINISHED)
    samples = scrape(port)
    assert samples["scoreline_worker_prefix_cache_total hits"] == 5
    assert samples["scoreline_worker_prefix_cache_total prefills"] == 2
    assert samples["scoreline_worker_batches_total finished"] == 1
    assert samples["scoreline_worker_batches_total lost"] == 0
    with capture_logs() as logs:
        WorkerMetrics().serve("127.0.0.1", port, None)
    assert [(line["log_level"], line["port"]) for line in logs] == [("error", port)]


@pytest.fixture
def process(sqlite_url: str, tmp_path: Path) -> Iterator[tuple[Process, int]]:
    """A worker process that offers metrics."""
    port = free_port()
    store = Store(sqlite_url)
    redis_url = f"redis://127.0.0.1:{free_port()}/0"
    running = Process(
        store, tmp_path / "log", "quick", worker_metrics_port=port, redis_url=redis_url, poll_seconds=0.05
    )
    yield running, port
    running.process.kill()
    running.process.wait()
    store.database.close()


def test_a_worker_process_offers_it_and_tells_its_pace_with_its_heartbeat(process: tuple[Process, int]) -> None:
    worker, port = process
    worker.wait_until_live()
    database = worker.store.database
    assert live_workers(database, 20.0)[0].tokens_per_second is None
    worker.store.wait_for(worker.store.submit(chunks=2))
    wait_until(lambda: scrape(port)["scoreline_worker_batches_total finished"] == 1, "it is counted")
    assert scrape(port)["scoreline_worker_scored_items_total"] == 4
    wait_until(lambda: live_workers(database, 20.0)[0].tokens_per_second, "the next heartbeat tells its pace")


def test_a_pace_is_told_again_after_the_worker_was_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine_loop.heartbeat.TOUCH_SECONDS", 0.05)
    record = WorkerRecord("worker", CARD, "weights", "none", "float32")
    with Presence(store.database, record, lambda: 12.5) as presence:
        presence.make_known(threading.Event())
        for _ in range(2):
            wait_until(
                lambda: [one.tokens_per_second for one in live_workers(store.database, 20.0)] == [12.5], "it is told"
            )
            with store.database.write() as connection:
                connection.execute(text("DELETE FROM workers"))
