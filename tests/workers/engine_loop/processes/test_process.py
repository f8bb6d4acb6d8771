"""The process of a scoring worker: how it starts, works and ends with Redis, the database or the engine in trouble."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from bell.local import LocalHub
from bell.redis_bell import RedisBell
from jobs.queue.read import has_waiting
from jobs.queue.worker_registry import live_workers
from jobs.store.records import JobStatus
from tests.bell.hearing import Heard, noticing
from tests.forked.running import WORKER, Forked, start
from tests.services import PostgresServer, RedisServer, free_port, wait_until
from tests.workers.conftest import CARD, MODEL, Store
from workers.stopping import STUCK

ROOT = Path(__file__).parents[4]
NEVER = 600.0


class Process:
    """A worker process on a store."""

    def __init__(self, store: Store, log: Path, mode: str, forked: bool = True, **settings: object) -> None:
        self.store = store
        self._log = log
        environment = os.environ | {
            "SCORELINE_DATABASE_URL": store.database.settings.database_url,
            **{f"SCORELINE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        command = "-m", "tests.workers.made_up_worker", mode
        self.process: Forked | subprocess.Popen[bytes]
        if forked:
            self.process = start(*command, imports=WORKER, log=log, environment=environment)
            return
        with log.open("wb") as output:
            self.process = subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, stderr=output)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_until_live(self) -> None:
        def live() -> bool:
            assert self.process.poll() is None, self.log
            return bool(live_workers(self.store.database, 20.0))

        wait_until(live, "the worker is live")

    def end(self, with_signal: signal.Signals) -> tuple[int, float]:
        """Send a signal. Return the exit status, and how many seconds the process took to end."""
        started = time.monotonic()
        self.process.send_signal(with_signal)
        status = self.process.wait(30)
        return status, time.monotonic() - started


StartProcess = Callable[..., Process]


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Store]:
    store = Store(sqlite_url)
    yield store
    store.database.close()


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[StartProcess]:
    """Start a worker process. Unless told otherwise, it has no Redis and never polls.

    forked: from a process that has imported the service, as is the default, which saves the time that imports take.
    """
    started: list[Process] = []

    def start_one(store: Store, mode: str = "quick", forked: bool = True, **settings: object) -> Process:
        absent = {"redis_url": f"redis://127.0.0.1:{free_port()}/0", "poll_seconds": NEVER}
        started.append(Process(store, tmp_path / f"worker-{len(started)}.log", mode, forked, **absent | settings))
        return started[-1]

    yield start_one
    for process in started:
        process.process.send_signal(signal.SIGCONT)
        process.process.kill()
        process.process.wait()


@pytest.mark.parametrize("stop", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_worker_works_without_redis_and_ends_quickly_when_told_to(
    store: Store, start_process: StartProcess, stop: signal.Signals
) -> None:
    worker = start_process(store, poll_seconds=0.1)
    worker.wait_until_live()
    store.wait_for(store.submit())
    status, seconds = worker.end(stop)
    assert status == 0, worker.log
    assert seconds < 2.0
    assert live_workers(store.database, 60.0) == [], "the worker has unregistered"
    assert "Traceback" not in worker.log


@pytest.mark.slow
def test_a_worker_freezes_the_objects_from_start_up(store: Store, start_process: StartProcess) -> None:
    # The objects of a forked process are frozen from the beginning.
    start_process(store, "frozen-garbage", forked=False, poll_seconds=0.1)
    store.wait_for(store.submit())


@pytest.mark.slow
def test_a_ring_through_redis_wakes_a_worker(
    store: Store, start_process: StartProcess, redis_server: RedisServer
) -> None:
    bell = RedisBell(redis_server.url, "scoreline")
    worker = start_process(store, redis_url=redis_server.url)
    worker.wait_until_live()
    job_id = store.submit()
    bell.ring(MODEL)
    store.wait_for(job_id)
    assert worker.end(signal.SIGTERM)[0] == 0
    bell.close()


def test_a_worker_survives_the_loss_of_redis_and_hears_rings_once_it_is_back(
    store: Store, start_process: StartProcess, redis_server: RedisServer
) -> None:
    worker = start_process(store, redis_url=redis_server.url)
    worker.wait_until_live()
    redis_server.stop()
    redis_server.start()
    bell = RedisBell(redis_server.url, "scoreline")
    job_id = store.submit()

    def scored_after_a_ring() -> bool:
        bell.ring(MODEL)
        return store.status(job_id) is JobStatus.SUCCEEDED

    wait_until(scored_after_a_ring, "a ring is heard again")
    redis_server.stop()
    try:
        status, seconds = worker.end(signal.SIGTERM)
    finally:
        redis_server.start()
    assert (status, seconds < 2.5) == (0, True), worker.log
    bell.close()


@pytest.mark.slow
def test_a_redis_that_does_not_answer_does_not_keep_a_worker_from_ending(
    store: Store, start_process: StartProcess, redis_server: RedisServer
) -> None:
    worker = start_process(store, redis_url=redis_server.url)
    worker.wait_until_live()
    with redis.Redis.from_url(redis_server.url) as client:
        server = int(client.info("server")["process_id"])
    os.kill(server, signal.SIGSTOP)
    try:
        status, seconds = worker.end(signal.SIGTERM)
    finally:
        os.kill(server, signal.SIGCONT)
    assert (status, seconds < 3.0) == (0, True), worker.log


def test_a_ring_through_the_local_socket_wakes_a_worker_whose_announcement_comes_back(
    store: Store, start_process: StartProcess, tmp_path: Path
) -> None:
    path, heard = str(tmp_path / "bell"), Heard()
    hub = LocalHub(path)
    with noticing(hub, heard):
        worker = start_process(store, bell_socket=path)
        worker.wait_until_live()
        job_id = store.submit()

        def scored_after_a_ring() -> bool:
            hub.ring(MODEL)
            return store.status(job_id) is JobStatus.SUCCEEDED

        wait_until(scored_after_a_ring, "the ring is heard")
        wait_until(lambda: heard.ended == [job_id], "the end is noticed")
        assert worker.end(signal.SIGTERM)[0] == 0, worker.log


def test_a_worker_told_to_stop_in_mid_batch_gives_the_rest_back(store: Store, start_process: StartProcess) -> None:
    job_id = store.submit(chunks=400)
    worker = start_process(store, "slow")
    wait_until(lambda: store.scored_items(job_id) > 0, "the first scores")
    status, seconds = worker.end(signal.SIGTERM)
    assert (status, seconds < 2.0) == (0, True), worker.log
    assert 0 < store.scored_items(job_id) < 800
    assert has_waiting(store.database, CARD)
    start_process(store)
    store.wait_for(job_id)


def test_a_second_signal_ends_a_worker_whose_engine_hangs(store: Store, start_process: StartProcess) -> None:
    job_id = store.submit()
    worker = start_process(store, "hang")
    store.wait_for(job_id, JobStatus.RUNNING)
    worker.process.send_signal(signal.SIGINT)
    wait_until(lambda: '"stopping"' in worker.log, "the first signal is seen")
    status, seconds = worker.end(signal.SIGINT)
    assert (status, seconds < 1.0) == (1, True)


def test_a_worker_whose_engine_hangs_ends_itself_and_another_takes_over(
    sqlite_url: str, start_process: StartProcess
) -> None:
    store = Store(sqlite_url)
    job_id = store.submit()
    hanging = start_process(store, "hang", step_timeout_seconds=1.0, lease_seconds=1.0)
    assert hanging.process.wait(30) == STUCK, hanging.log
    assert "no progress" in hanging.log
    start_process(store, sweep_seconds=0.2, poll_seconds=0.1, lease_seconds=1.0)
    store.wait_for(job_id)


@pytest.mark.slow
def test_a_worker_whose_device_is_broken_ends_and_leaves_its_work_to_others(
    store: Store, start_process: StartProcess
) -> None:
    job_id = store.submit()
    broken = start_process(store, "broken")
    assert broken.process.wait(30) == 1, broken.log
    assert live_workers(store.database, 60.0) == []
    start_process(store)
    store.wait_for(job_id)


@pytest.mark.slow
def test_a_frozen_worker_that_wakes_up_late_does_no_harm(sqlite_url: str, start_process: StartProcess) -> None:
    store = Store(sqlite_url)
    job_id = store.submit(chunks=100)
    frozen = start_process(store, "slow", lease_seconds=0.5, poll_seconds=0.1)
    wait_until(lambda: store.scored_items(job_id) > 0, "the first scores")
    with store.database.write():  # Frozen with SQLite's lock, the worker would keep it from all others.
        frozen.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: _is_stopped(frozen.process.pid), "the worker is frozen")
    start_process(store, sweep_seconds=0.2, poll_seconds=0.1)
    store.wait_for(job_id)
    frozen.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "dropping a lost batch" in frozen.log, "the thawed worker learns that its batch is lost")
    store.wait_for(store.submit())
    assert frozen.end(signal.SIGTERM)[0] == 0, frozen.log
    assert store.scored_items(job_id) == 200


def test_a_signal_during_loading_ends_the_worker_at_once(store: Store, start_process: StartProcess) -> None:
    worker = start_process(store, "loading")
    wait_until(lambda: _takes_signals(worker.process.pid), "the process handles SIGTERM")
    status, seconds = worker.end(signal.SIGTERM)
    assert (status, seconds < 1.0) == (0, True), worker.log


def _is_stopped(process_id: int) -> bool:
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _takes_signals(process_id: int) -> bool:
    status = Path(f"/proc/{process_id}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught & 1 << (signal.SIGTERM - 1))


@pytest.mark.slow
def test_a_worker_waits_for_a_database_that_is_not_there_yet(
    postgres: PostgresServer, postgres_url: str, start_process: StartProcess
) -> None:
    store = Store(postgres_url)
    postgres.stop()
    try:
        worker = start_process(store)
        wait_until(lambda: "waiting for the database" in worker.log, "the worker waits for the database")
    finally:
        postgres.start()
    worker.wait_until_live()
    assert worker.end(signal.SIGTERM)[0] == 0


@pytest.mark.slow
def test_a_worker_waits_for_the_schema_of_the_database(postgres: PostgresServer, start_process: StartProcess) -> None:
    store = Store(postgres.url(postgres.create_database()))
    worker = start_process(store)
    wait_until(lambda: "waiting for the database" in worker.log, "the worker waits for the database")
    status, seconds = worker.end(signal.SIGTERM)
    assert (status, seconds < 2.0) == (0, True), worker.log
