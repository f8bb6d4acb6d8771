"""A worker is killed (SIGKILL) at each of the points where it holds something: another does the work, once."""

from __future__ import annotations

import pytest

from jobs.queue.read import get_job
from jobs.store.records import JobStatus
from tests.faults.deployment import SECONDS, FaultyDeployment, frozen_when_ready, names_of
from tests.faults.injection.points import Point
from tests.faults.outcomes import assert_succeeded_once, blames, claimed, leases
from tests.services import wait_until
from tests.workers.conftest import Store

CHUNKS = 6

BETWEEN_CHUNKS = Point("workers.engine_loop.score_committer.finish", "before", nth=2)
ELSEWHERE = [
    Point("workers.engine_loop.loop.claim", "commit"),
    Point("workers.engine_loop.loop.claim", "after"),
    Point("workers.engine_loop.score_committer.finish", "before"),
    Point("workers.engine_loop.score_committer.finish", "commit"),
    Point("workers.engine_loop.score_committer.finish", "after"),
    Point("workers.engine_loop.lease_renewal.renew", "commit"),
    Point("workers.engine_loop.lease_renewal.renew", "after"),
]
SWEEPING = [
    Point("jobs.queue.sweep.return_batch", "before"),
    Point("jobs.queue.sweep.return_batch", "after"),  # within its transaction
    Point("jobs.queue.sweep._return_lost_batch", "after"),  # it is committed, and nobody was rung
]
RELEASING = [
    Point("workers.engine_loop.loop.release", "commit"),
    Point("workers.engine_loop.loop.release", "after"),
]


def rescue(deployment: FaultyDeployment, store: Store, point: Point) -> None:
    """Run a job into a point, and have a second worker finish it."""
    rescuer = deployment.launch_worker(frozen_when_ready(), wait=False)
    job_id = store.submit(chunks=CHUNKS)
    victim = deployment.launch_worker(point, mode="slow", wait=False, lease_seconds=0.5, sweep_seconds=600)
    victim.wait_until_killed()
    left = store.scored_items(job_id)
    assert left < 2 * CHUNKS, "the kill came too late to interrupt anything"
    rescuer.wait_until_frozen()
    rescuer.thaw()
    wait_until(lambda: store.status(job_id).ended, "the job to end", SECONDS)
    assert_succeeded_once(store, job_id, CHUNKS)
    assert claimed(store) == 0


def test_a_worker_killed_between_two_chunks_leaves_the_rest_to_another(
    deployment: FaultyDeployment, store: Store
) -> None:
    rescue(deployment, store, BETWEEN_CHUNKS)


@pytest.mark.faults
@pytest.mark.parametrize("point", ELSEWHERE, ids=names_of(ELSEWHERE))
def test_wherever_a_worker_is_killed_another_does_its_work(
    deployment: FaultyDeployment, store: Store, point: Point
) -> None:
    rescue(deployment, store, point)


@pytest.mark.faults
def test_a_job_of_one_chunk_whose_finish_was_not_committed_is_finished_by_another(
    deployment: FaultyDeployment, store: Store
) -> None:
    job_id = store.submit()
    victim = deployment.launch_worker(
        Point("workers.engine_loop.score_committer.finish", "commit"), wait=False, lease_seconds=0.5
    )
    victim.wait_until_killed()
    assert store.status(job_id) is JobStatus.RUNNING
    deployment.launch_worker()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 1)


@pytest.mark.faults
def test_an_end_that_was_committed_but_not_announced_stands(deployment: FaultyDeployment, store: Store) -> None:
    rescuer = deployment.launch_worker(frozen_when_ready(), wait=False)
    job_id = store.submit()
    victim = deployment.launch_worker(
        Point("workers.engine_loop.score_committer.finish", "after"), wait=False, lease_seconds=0.5
    )
    victim.wait_until_killed()
    ended = get_job(store.database, "default", job_id)
    assert ended.status is JobStatus.SUCCEEDED
    rescuer.wait_until_frozen()
    rescuer.thaw()
    store.wait_for(store.submit(token=8))
    wait_until(lambda: leases(store) == 1, "the first batch to be forgotten", SECONDS)
    assert get_job(store.database, "default", job_id) == ended, "not even its times have changed"
    assert_succeeded_once(store, job_id, 1)


@pytest.mark.faults
@pytest.mark.parametrize("point", SWEEPING, ids=names_of(SWEEPING))
def test_a_sweeper_killed_over_a_lost_batch_leaves_no_half_of_it(
    deployment: FaultyDeployment, store: Store, point: Point
) -> None:
    job_id = store.submit(chunks=CHUNKS)
    lost = deployment.launch_worker(
        Point("workers.engine_loop.loop.claim", "after"), wait=False, lease_seconds=0.2, sweep_seconds=600
    )
    lost.wait_until_killed()
    sweeper = deployment.launch_worker(point, wait=False, poll_seconds=600)
    sweeper.wait_until_killed()
    committed = point.function == "jobs.queue.sweep._return_lost_batch"
    assert (claimed(store), blames(store)) == ((0, CHUNKS) if committed else (CHUNKS, 0))
    deployment.launch_worker()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, CHUNKS)


@pytest.mark.faults
@pytest.mark.parametrize("point", RELEASING, ids=names_of(RELEASING))
def test_a_worker_killed_while_it_gives_its_work_back(deployment: FaultyDeployment, store: Store, point: Point) -> None:
    job_id = store.submit(chunks=100)
    stopping = deployment.launch_worker(point, mode="slow", lease_seconds=0.5, sweep_seconds=600)
    wait_until(lambda: store.scored_items(job_id) > 0, "the first scores")
    stopping.process.terminate()
    stopping.wait_until_killed()
    assert 0 < store.scored_items(job_id) < 200
    deployment.launch_worker()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 100)


@pytest.mark.faults
def test_a_worker_that_is_told_to_stop_burns_no_attempt(deployment: FaultyDeployment, store: Store) -> None:
    job_id = store.submit(chunks=100)
    for _ in range(4):  # more often than a chunk may fail
        scored = store.scored_items(job_id)
        stopping = deployment.launch_worker(mode="slow", sweep_seconds=600)
        wait_until(lambda scored=scored: store.scored_items(job_id) > scored, "more scores")  # type: ignore[misc]
        assert stopping.terminate() == 0
        assert (claimed(store), leases(store), blames(store)) == (0, 0, 0), "it gave back all, and nobody is to blame"
    assert store.status(job_id) is JobStatus.RUNNING
    deployment.launch_worker()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 100)
