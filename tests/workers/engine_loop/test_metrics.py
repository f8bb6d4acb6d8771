"""The metrics of a scoring worker, and the rate that it reports with its heartbeat."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from structlog.testing import capture_logs

from jobs.queue.claims.claim import claim
from jobs.queue.worker_registry import live_workers, touch
from jobs.store.database import StorageUnavailable
from jobs.store.records import JobStatus, WorkerRecord
from tests.services import free_port, wait_until
from tests.workers.conftest import CARD, Store, Worker
from tests.workers.engine_loop.processes.test_process import Process
from tests.workers.engines import POISON, MadeUpEngine
from workers.engine_loop.heartbeat import Heartbeat
from workers.engine_loop.measuring.metrics import BatchOutcome, WorkerMetrics

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
    """Return the number of batches by outcome, without outcomes that did not occur."""
    counts = {
        outcome.value: worker.loop._metrics._registry.get_sample_value(
            "scoreline_worker_batches_total", {"outcome": outcome.value}
        )
        for outcome in BatchOutcome
    }
    return {name: count for name, count in counts.items() if count}


def test_items_tokens_and_seconds_of_a_scored_batch_are_counted(store: Store, start_worker: StartWorker) -> None:
    worker = start_worker(store)
    assert worker.loop.tokens_per_second is None
    store.wait_for(store.submit(chunks=3))
    wait_until(lambda: outcomes(worker) == {"finished": 1}, "the batch is counted")
    registry = worker.loop._metrics._registry
    assert registry.get_sample_value("scoreline_worker_scored_items_total") == 6
    assert registry.get_sample_value("scoreline_worker_computed_tokens_total") == 3 * 9
    assert (registry.get_sample_value("scoreline_worker_scoring_seconds_total") or 0) > 0
    assert worker.loop.tokens_per_second is not None


def test_failed_batches_and_a_batch_that_is_given_back_are_counted(store: Store, start_worker: StartWorker) -> None:
    job_id = store.submit(token=POISON)
    worker = start_worker(store)
    store.wait_for(job_id, JobStatus.FAILED)
    wait_until(lambda: outcomes(worker) == {"failed": 3}, "each attempt is counted")
    worker.engine.hold()
    store.submit(chunks=2)
    worker.engine.holding.wait(30)
    worker.stop()
    assert outcomes(worker) == {"failed": 3, "given_back": 1}


def start_and_lose_a_batch(store: Store, start_worker: StartWorker, token: int) -> Worker:
    """Start a worker, and take its batch away before the first step. Return once the worker has noticed that."""
    worker = start_worker(store, engine=MadeUpEngine.held())
    with capture_logs() as logs:
        store.submit(chunks=2, token=token)
        assert worker.engine.holding.wait(30)
        with store.database.write() as connection:
            connection.execute(text("DELETE FROM batches"))
            connection.execute(text("UPDATE chunks SET state = 'waiting', batch_id = NULL"))
        wait_until(lambda: any(line["event"].startswith("lost a batch") for line in logs), "the loss is noticed")
    return worker


def test_a_lost_batch_is_counted(sqlite_url: str, start_worker: StartWorker) -> None:
    worker = start_and_lose_a_batch(Store(sqlite_url, lease_seconds=0.4), start_worker, token=7)
    worker.engine.go_on()
    wait_until(lambda: "lost" in outcomes(worker), "the batch is counted")
    assert outcomes(worker)["lost"] == 1


def test_a_batch_at_which_the_engine_fails_after_it_was_lost_is_counted_as_failed(
    sqlite_url: str, start_worker: StartWorker
) -> None:
    worker = start_and_lose_a_batch(Store(sqlite_url, lease_seconds=0.4), start_worker, token=POISON)
    worker.engine.go_on()
    wait_until(lambda: outcomes(worker), "the batch is counted")
    assert set(outcomes(worker)) == {"failed"}


def test_a_batch_whose_scores_can_not_be_stored_is_counted_as_failed(
    store: Store, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish_with_an_error(*_: object, **__: object) -> None:
        raise ValueError("a column is missing")

    monkeypatch.setattr("workers.engine_loop.score_committer.finish", finish_with_an_error)
    job_id = store.submit()
    worker = start_worker(store)
    store.wait_for(job_id, JobStatus.FAILED)
    wait_until(lambda: outcomes(worker) == {"failed": 3}, "each attempt is counted")


def test_a_batch_whose_scores_are_dropped_when_the_worker_stops_in_an_outage_is_given_back(
    store: Store, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish_in_an_outage(*_: object, **__: object) -> None:
        raise StorageUnavailable("no connection")

    monkeypatch.setattr("workers.engine_loop.score_committer.finish", finish_in_an_outage)
    store.submit(chunks=2)
    with capture_logs() as logs:
        worker = start_worker(store)
        wait_until(lambda: any(line["event"] == "scored" for line in logs), "the batch is scored to its end")
        worker.stop()
    assert outcomes(worker) == {"given_back": 1}
    given_back = claim(store.database, "another", CARD, 10**6)
    assert given_back is not None
    assert len(given_back.chunk_ids) == 2, "the chunks are not suspected of poison"


@pytest.fixture
def metrics() -> WorkerMetrics:
    return WorkerMetrics()


def test_metrics_are_offered_over_http_with_those_of_the_engine(metrics: WorkerMetrics) -> None:
    port = free_port()
    counts, ratios = {"hits": 0, "prefills": 2}, [1.0]
    metrics.serve("127.0.0.1", port, lambda: counts, lambda: ratios[-1])
    counts["hits"] = 5
    ratios.append(0.25)
    metrics.count_batch(BatchOutcome.FINISHED)
    samples = scrape(port)
    assert samples["scoreline_worker_prefix_cache_total hits"] == 5
    assert samples["scoreline_worker_prefix_cache_total prefills"] == 2
    assert samples["scoreline_worker_estimate_ratio"] == 0.25
    assert samples["scoreline_worker_batches_total finished"] == 1
    assert samples["scoreline_worker_batches_total lost"] == 0
    with capture_logs() as logs:
        WorkerMetrics().serve("127.0.0.1", port)
    assert [line["log_level"] for line in logs] == ["error"]
    assert logs[0]["reason"].startswith(f"SCORELINE_WORKER_METRICS_PORT is '{port}': ")


@pytest.fixture
def process(sqlite_url: str, tmp_path: Path) -> Iterator[tuple[Process, int]]:
    """A worker process and the port at which it offers its metrics."""
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


def test_a_worker_process_offers_metrics_and_reports_its_rate_with_its_heartbeat(process: tuple[Process, int]) -> None:
    worker, port = process
    worker.wait_until_live()
    database = worker.store.database
    assert live_workers(database, 20.0)[0].tokens_per_second is None
    worker.store.wait_for(worker.store.submit(chunks=2))
    wait_until(lambda: scrape(port)["scoreline_worker_batches_total finished"] == 1, "the batch is counted")
    assert scrape(port)["scoreline_worker_scored_items_total"] == 4
    wait_until(lambda: live_workers(database, 20.0)[0].tokens_per_second, "the next heartbeat reports the rate")


def test_a_heartbeat_registers_a_worker_again_whose_row_is_gone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine_loop.heartbeat.HEARTBEAT_SECONDS", 0.05)
    record = WorkerRecord("worker", CARD, "weights", "none", "float32")
    with Heartbeat(store.database, record, lambda: 12.5) as heartbeat:
        heartbeat.register(threading.Event())
        for _ in range(2):
            wait_until(
                lambda: [one.tokens_per_second for one in live_workers(store.database, 20.0)] == [12.5],
                "the rate is reported",
            )
            with store.database.write() as connection:
                connection.execute(text("DELETE FROM workers"))


def test_a_heartbeat_that_is_under_way_does_not_register_a_stopped_worker_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.engine_loop.heartbeat.HEARTBEAT_SECONDS", 0.05)
    under_way = threading.Event()

    def touch_late(*given: Any) -> bool:
        """Come after the worker has left, if it can."""
        under_way.set()
        with suppress(TimeoutError):
            wait_until(lambda: not live_workers(store.database, 20.0), "the worker has left", 0.5)
        return touch(*given)

    monkeypatch.setattr("workers.engine_loop.heartbeat.touch", touch_late)
    record = WorkerRecord("worker", CARD, "weights", "none", "float32")
    with Heartbeat(store.database, record, lambda: 12.5) as heartbeat:
        heartbeat.register(threading.Event())
        assert under_way.wait(20.0)
    for thread in threading.enumerate():
        if thread.name == "touching":
            thread.join()
    assert live_workers(store.database, 20.0) == []
