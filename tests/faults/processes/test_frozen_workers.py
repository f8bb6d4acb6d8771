"""A worker is frozen (SIGSTOP) until its lease has run out, and goes on: what it does then has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from jobs.queue.claims.claim_choice import FEW_CHUNKS
from jobs.queue.read import get_job
from jobs.queue.sweep import sweep
from jobs.store.records import JobStatus
from tests.databases import quick_on
from tests.faults.deployment import SECONDS, FaultyDeployment, Launched, frozen_when_ready
from tests.faults.injection.places import CHARGE_CLAIM, FINISH
from tests.faults.injection.points import Point
from tests.faults.outcomes import assert_succeeded_once, claimed, expire_leases
from tests.services import PostgresServer, wait_until
from tests.workers.conftest import Store

BEFORE_FINISH = Point(FINISH, "before", signal="SIGSTOP")
NEVER = 600.0
SESSION_ENDED = "terminating connection due to idle-in-transaction timeout"  # in the log of PostgreSQL


def freeze_over_a_job(deployment: FaultyDeployment, store: Store) -> tuple[Launched, str]:
    """Freeze a worker between its last look at its lease and the commit of its scores; let the lease run out."""
    job_id = store.submit()
    frozen = deployment.launch_worker(BEFORE_FINISH, mode="strange", wait=False, sweep_seconds=NEVER)
    frozen.wait_until_frozen()
    expire_leases(store)
    assert sweep(store.database).models
    assert claimed(store) == 0
    return frozen, job_id


@quick_on("postgres")
def test_the_late_finish_of_a_frozen_worker_is_fenced_while_another_holds_the_chunk(
    deployment: FaultyDeployment, store: Store
) -> None:
    second = deployment.launch_worker(frozen_when_ready(), BEFORE_FINISH, wait=False, sweep_seconds=NEVER)
    frozen, job_id = freeze_over_a_job(deployment, store)
    second.wait_until_frozen()
    second.thaw()
    wait_until(lambda: claimed(store) == 1, "the second claim")
    second.wait_until_frozen()
    frozen.thaw()
    wait_until(lambda: frozen.logged("scores came too late") or store.status(job_id).ended, "the late finish", SECONDS)
    assert store.status(job_id) is JobStatus.RUNNING, "the chunk belongs to the second worker"
    assert (store.scored_items(job_id), claimed(store)) == (0, 1)
    second.thaw()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 1)


@pytest.mark.faults
def test_the_late_finish_of_a_frozen_worker_does_not_change_a_job_that_has_ended(
    deployment: FaultyDeployment, store: Store
) -> None:
    frozen, job_id = freeze_over_a_job(deployment, store)
    deployment.launch_worker(sweep_seconds=NEVER)
    store.wait_for(job_id)
    ended = get_job(store.database, "default", job_id)
    frozen.thaw()
    wait_until(lambda: frozen.logged("scores came too late"), "the late finish", SECONDS)
    assert get_job(store.database, "default", job_id) == ended
    assert_succeeded_once(store, job_id, 1)
    store.wait_for(store.submit(token=8))
    assert frozen.terminate() == 0, "the thawed worker went on working"


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[Store]:
    """A store with locks of rows."""
    store = Store(postgres_url)
    yield store
    store.database.close()


@pytest.fixture
def on_postgres(tmp_path: Path, postgres_url: str, no_redis: str) -> Iterator[FaultyDeployment]:
    """A deployment on ``postgres_store``."""
    with FaultyDeployment(tmp_path, postgres_url, no_redis) as deployment:
        yield deployment


@pytest.mark.faults
def test_two_workers_that_are_frozen_in_turn_at_any_time_store_each_chunk_once(
    on_postgres: FaultyDeployment, postgres_store: Store
) -> None:
    store = postgres_store
    job_id = store.submit(chunks=60)
    workers = [
        on_postgres.launch_worker(mode="slow", idle_seconds=1, lease_seconds=0.5, max_attempts=1000) for _ in range(2)
    ]

    def goes_on(scored: int) -> bool:
        return store.scored_items(job_id) > scored or store.status(job_id).ended

    for turn in range(6):
        wait_until(partial(goes_on, store.scored_items(job_id)), "more scores")
        workers[turn % 2].freeze()
        wait_until(lambda: sweep(store.database).models or claimed(store) == 0, "what it held is returned")
        workers[turn % 2].thaw()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 60)


@pytest.mark.faults
def test_a_job_ends_when_two_workers_finish_its_last_two_chunks_at_once(
    on_postgres: FaultyDeployment, postgres_store: Store
) -> None:
    """One worker is frozen just before its commit, until the other one waits for the rows that it has locked."""
    store = postgres_store
    job_id = store.submit(chunks=2)
    one_chunk: dict[str, Any] = {"claim_seconds": 0.0001, "sweep_seconds": NEVER}
    point = Point(FINISH, "commit", signal="SIGSTOP")
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
def test_a_worker_frozen_within_its_finish_blocks_others_for_a_bounded_time(
    on_postgres: FaultyDeployment, postgres_store: Store
) -> None:
    """It locks its rows until PostgreSQL ends its session: after a minute in the product, after a second here."""
    store = postgres_store
    job_id = store.submit()
    point = Point(FINISH, "commit", signal="SIGSTOP")
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
def test_a_worker_whose_session_is_ended_in_the_middle_of_a_claim_goes_on(
    on_postgres: FaultyDeployment, postgres_store: Store, postgres: PostgresServer
) -> None:
    """A session may end in any transaction. The worker treats that as an outage of the database."""
    store = postgres_store
    job_id = store.submit(chunks=FEW_CHUNKS)  # so many that the claim is a transaction of several statements
    ended_before = postgres.log().count(SESSION_ENDED)
    point = Point(CHARGE_CLAIM, "before", signal="SIGSTOP")
    frozen = on_postgres.launch_worker(point, wait=False, idle_seconds=1, sweep_seconds=NEVER)
    frozen.wait_until_frozen()
    wait_until(lambda: postgres.log().count(SESSION_ENDED) > ended_before, "its session is ended")
    frozen.thaw()
    assert_it_goes_on(frozen, store)
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, FEW_CHUNKS)


def assert_it_goes_on(thawed: Launched, store: Store) -> None:
    """Assert that the process is alive, has logged no unexpected error, and ends in good order."""
    job_id = store.submit(token=8)
    wait_until(lambda: store.status(job_id).ended or thawed.process.poll() is not None, "work to be done", SECONDS)
    assert thawed.process.poll() is None, thawed.log
    assert "Traceback" not in thawed.log, thawed.log
    assert thawed.terminate() == 0, thawed.log
