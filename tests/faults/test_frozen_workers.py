"""A worker is frozen (SIGSTOP) past its lease, and wakes up: what it does then comes too late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from jobs.queue.read import get_job
from jobs.queue.sweep import sweep
from jobs.store.records import JobStatus
from tests.faults.deployment import SECONDS, FaultyDeployment, Launched, frozen_when_ready
from tests.faults.injection.points import Point
from tests.faults.outcomes import assert_succeeded_once, claimed, expire_leases
from tests.services import PostgresServer, wait_until
from tests.workers.conftest import Store

FINISHING = Point("workers.engine_loop.score_committer.finish", "before", signal="SIGSTOP")
NEVER = 600.0
IDLE = "terminating connection due to idle-in-transaction timeout"


def freeze_over_a_job(deployment: FaultyDeployment, store: Store) -> tuple[Launched, str]:
    """A worker that is frozen after it has made sure of its lease, in front of the statement that stores its scores."""
    job_id = store.submit()
    frozen = deployment.launch_worker(FINISHING, mode="strange", wait=False, sweep_seconds=NEVER)
    frozen.wait_until_frozen()
    expire_leases(store)
    assert sweep(store.database).models
    assert claimed(store) == 0
    return frozen, job_id


def test_a_late_finish_is_fenced_though_its_chunk_is_claimed_again(deployment: FaultyDeployment, store: Store) -> None:
    second = deployment.launch_worker(frozen_when_ready(), FINISHING, wait=False, sweep_seconds=NEVER)
    frozen, job_id = freeze_over_a_job(deployment, store)
    second.wait_until_frozen()
    second.thaw()
    wait_until(lambda: claimed(store) == 1, "the second claim")
    second.wait_until_frozen()
    frozen.thaw()
    wait_until(lambda: frozen.logged("scores came too late") or store.status(job_id).ended, "the late finish", SECONDS)
    assert store.status(job_id) is JobStatus.RUNNING, "it is the second worker's"
    assert (store.scored_items(job_id), claimed(store)) == (0, 1)
    second.thaw()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 1)


@pytest.mark.faults
def test_a_late_finish_changes_nothing_of_an_end(deployment: FaultyDeployment, store: Store) -> None:
    frozen, job_id = freeze_over_a_job(deployment, store)
    deployment.launch_worker(sweep_seconds=NEVER)
    store.wait_for(job_id)
    ended = get_job(store.database, "default", job_id)
    frozen.thaw()
    wait_until(lambda: frozen.logged("scores came too late"), "the late finish", SECONDS)
    assert get_job(store.database, "default", job_id) == ended
    assert_succeeded_once(store, job_id, 1)
    store.wait_for(store.submit(token=8))
    assert frozen.terminate() == 0, "and it went on working"


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[Store]:
    """For what depends on locks of rows."""
    store = Store(postgres_url)
    yield store
    store.database.close()


@pytest.fixture
def on_postgres(tmp_path: Path, postgres_url: str, no_redis: str) -> Iterator[FaultyDeployment]:
    """A deployment on it."""
    with FaultyDeployment(tmp_path, postgres_url, no_redis) as deployment:
        yield deployment


@pytest.mark.faults
def test_workers_frozen_anywhere_in_mid_batch_store_each_chunk_once(
    on_postgres: FaultyDeployment, postgres_store: Store
) -> None:
    store = postgres_store
    job_id = store.submit(chunks=60)
    workers = [
        on_postgres.launch_worker(mode="slow", idle_seconds=1, lease_seconds=0.5, max_attempts=1000) for _ in range(2)
    ]
    for turn in range(6):
        before = store.scored_items(job_id)
        wait_until(
            lambda before=before: store.scored_items(job_id) > before or store.status(job_id).ended, "it gets on"
        )  # type: ignore[misc]
        workers[turn % 2].freeze()
        wait_until(lambda: sweep(store.database).models or claimed(store) == 0, "what it held is returned")
        workers[turn % 2].thaw()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 60)


@pytest.mark.faults
def test_two_workers_that_finish_the_last_two_chunks_at_once_do_not_miss_each_other(
    on_postgres: FaultyDeployment, postgres_store: Store
) -> None:
    """One is frozen in front of its commit, when all is written, until the other one waits for what it has locked."""
    store = postgres_store
    job_id = store.submit(chunks=2)
    one_chunk = {"claim_seconds": 0.0001, "sweep_seconds": NEVER}
    point = Point("workers.engine_loop.score_committer.finish", "commit", signal="SIGSTOP")
    first = on_postgres.launch_worker(point, wait=False, **one_chunk)
    first.wait_until_frozen()
    assert claimed(store) == 1
    on_postgres.launch_worker(**one_chunk)
    with store.database.read() as connection:
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        wait_until(lambda: connection.scalar(waiting), "the second one waits for the first", SECONDS)
    first.thaw()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 2)


@pytest.mark.faults
def test_a_worker_frozen_within_its_finish_holds_others_up_for_a_bounded_time(
    on_postgres: FaultyDeployment, postgres_store: Store
) -> None:
    """It holds the locks of its rows until PostgreSQL ends its session: a minute in the product, a second here."""
    store = postgres_store
    job_id = store.submit()
    point = Point("workers.engine_loop.score_committer.finish", "commit", signal="SIGSTOP")
    frozen = on_postgres.launch_worker(point, wait=False, lease_seconds=0.5, idle_seconds=1, sweep_seconds=NEVER)
    frozen.wait_until_frozen()
    on_postgres.launch_worker()
    store.wait_for(job_id)
    ended = get_job(store.database, "default", job_id)
    frozen.thaw()
    assert_it_goes_on(frozen, store)
    assert get_job(store.database, "default", job_id) == ended
    assert_succeeded_once(store, job_id, 1)


@pytest.mark.faults
def test_a_worker_frozen_within_its_claim_goes_on_though_its_session_was_ended(
    on_postgres: FaultyDeployment, postgres_store: Store, postgres: PostgresServer
) -> None:
    """A session may end in the middle of any transaction. That is an outage, and no fault of the work or the worker."""
    store = postgres_store
    job_id = store.submit()
    ended_before = postgres.log().count(IDLE)
    point = Point("jobs.queue.claim._take", "after", signal="SIGSTOP")
    frozen = on_postgres.launch_worker(point, wait=False, idle_seconds=1, sweep_seconds=NEVER)
    frozen.wait_until_frozen()
    wait_until(lambda: postgres.log().count(IDLE) > ended_before, "its session is ended")
    frozen.thaw()
    assert_it_goes_on(frozen, store)
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 1)


def assert_it_goes_on(thawed: Launched, store: Store) -> None:
    """The process is alive, met nothing that it does not know, and ends in good order."""
    job_id = store.submit(token=8)
    wait_until(lambda: store.status(job_id).ended or thawed.process.poll() is not None, "work to be done", SECONDS)
    assert thawed.process.poll() is None, thawed.log
    assert "Traceback" not in thawed.log, thawed.log
    assert thawed.terminate() == 0, thawed.log
