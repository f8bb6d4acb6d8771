"""Workers whose own clocks are wrong. Leases use the clock of the database, so no other clock matters."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from jobs.queue.read import get_job
from jobs.store.clock import NOW
from jobs.store.tables import batches
from tests.faults.deployment import FaultyDeployment
from tests.faults.outcomes import assert_succeeded_once, suspects
from tests.services import wait_until
from tests.workers.conftest import Store

HOUR = 3600.0


@pytest.mark.faults
def test_workers_whose_clocks_differ_by_hours_take_no_batches_from_each_other(
    deployment: FaultyDeployment, store: Store
) -> None:
    workers = [deployment.launch_worker(mode="slow", clock=clock, lease_seconds=20) for clock in (-HOUR, 0.0, HOUR)]
    job_ids = [store.submit(chunks=40) for _ in range(3)]
    for job_id in job_ids:
        store.wait_for(job_id)
        assert_succeeded_once(store, job_id, 40)
        job = get_job(store.database, "default", job_id)
        assert job.started_at is not None
        assert job.finished_at is not None
        assert job.created_at <= job.started_at <= job.finished_at < job.created_at + 60
    assert suspects(store) == 0, "no lease ran out too early"
    assert not any(worker.logged("lost a batch: its lease had run out") for worker in workers)


@pytest.mark.faults
def test_the_lease_of_a_killed_worker_whose_clock_was_ahead_runs_out_in_time(
    deployment: FaultyDeployment, store: Store
) -> None:
    job_id = store.submit(chunks=40)
    ahead = deployment.launch_worker(mode="slow", clock=HOUR, lease_seconds=1)
    wait_until(lambda: store.scored_items(job_id) > 0, "the first scores")
    ahead.kill()
    with store.database.read() as connection:
        now = connection.scalar(select(NOW))
        until = connection.scalars(select(batches.c.lease_until)).one()
    assert now is not None
    assert until - now < 2
    deployment.launch_worker(clock=-HOUR)
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 40)
