"""A worker is killed (SIGKILL) while it holds work: another one does the work, and every chunk counts once."""

from __future__ import annotations

from functools import partial

import pytest

from jobs.queue.read import get_job, read_scores
from jobs.store.records import JobStatus
from tests.databases import quick_on
from tests.faults.deployment import SECONDS, FaultyDeployment, frozen_when_ready, names_of
from tests.faults.injection.places import CLAIM, FINISH, RELEASE, RENEW, RETURN_BATCH, SWEEP
from tests.faults.injection.points import Point
from tests.faults.outcomes import assert_succeeded_once, batch_count, claimed, expire_leases, suspects
from tests.services import wait_until
from tests.workers.conftest import Store

CHUNKS = 6

BETWEEN_COMMITS = Point(FINISH, "before", nth=2)
ELSEWHERE = [
    Point(CLAIM, "commit"),
    Point(CLAIM, "after"),
    Point(FINISH, "before"),
    Point(FINISH, "commit"),
    Point(FINISH, "after"),
    Point(RENEW, "commit"),
    Point(RENEW, "after"),
]
SWEEPING = [
    Point(RETURN_BATCH, "before"),
    Point(RETURN_BATCH, "after"),
    Point(SWEEP, "after"),
]
RELEASING = [
    Point(RELEASE, "commit"),
    Point(RELEASE, "after"),
]


def rescue(deployment: FaultyDeployment, store: Store, point: Point) -> None:
    """Have a worker killed at a point while it works on a job, and a second worker finish the job."""
    rescuer = deployment.launch_worker(frozen_when_ready(), wait=False)
    job_id = store.submit(chunks=CHUNKS)
    victim = deployment.launch_worker(point, mode="slow", wait=False, lease_seconds=0.5, sweep_seconds=600)
    victim.wait_until_killed()
    assert store.scored_items(job_id) < 2 * CHUNKS, "the worker was killed after its last chunk"
    rescuer.wait_until_frozen()
    rescuer.thaw()
    wait_until(lambda: store.status(job_id).ended, "the job to end", SECONDS)
    assert_succeeded_once(store, job_id, CHUNKS)
    assert claimed(store) == 0


@quick_on("postgres")
def test_the_rest_of_a_job_whose_worker_is_killed_between_two_commits_is_done_by_another(
    deployment: FaultyDeployment, store: Store
) -> None:
    rescue(deployment, store, BETWEEN_COMMITS)


@pytest.mark.faults
def test_likelihoods_have_the_same_bits_although_the_worker_is_killed_in_the_middle(
    deployment: FaultyDeployment, store: Store
) -> None:
    rescuer = deployment.launch_worker(frozen_when_ready(), wait=False)
    job_id = store.submit(chunks=CHUNKS, likelihood=True)
    victim = deployment.launch_worker(BETWEEN_COMMITS, mode="slow", wait=False, lease_seconds=0.5, sweep_seconds=600)
    victim.wait_until_killed()
    assert 0 < store.scored_items(job_id) < 2 * CHUNKS
    rescuer.wait_until_frozen()
    rescuer.thaw()
    undisturbed = store.submit(chunks=CHUNKS, likelihood=True)
    for one in (job_id, undisturbed):
        store.wait_for(one)
    pages = [read_scores(store.database, "default", one, 0, 2 * CHUNKS) for one in (job_id, undisturbed)]
    found = []
    for page in pages:
        assert page.targets is not None
        assert len(page.indices) == 2 * CHUNKS
        found.append(
            (page.scores.logits.tobytes(), page.targets.token_logprobs.tobytes(), page.targets.greedy.tobytes())
        )
    assert found[0] == found[1]


@pytest.mark.faults
@pytest.mark.parametrize("point", ELSEWHERE, ids=names_of(ELSEWHERE))
def test_a_job_whose_worker_is_killed_at_any_other_point_is_done_by_another(
    deployment: FaultyDeployment, store: Store, point: Point
) -> None:
    rescue(deployment, store, point)


@pytest.mark.faults
def test_a_job_of_one_chunk_whose_finish_was_not_committed_is_finished_by_another(
    deployment: FaultyDeployment, store: Store
) -> None:
    job_id = store.submit()
    victim = deployment.launch_worker(Point(FINISH, "commit"), wait=False, lease_seconds=0.5)
    victim.wait_until_killed()
    assert store.status(job_id) is JobStatus.RUNNING
    deployment.launch_worker()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 1)


@pytest.mark.faults
def test_a_job_whose_worker_is_killed_between_its_last_commit_and_the_announcement_stays_ended(
    deployment: FaultyDeployment, store: Store
) -> None:
    rescuer = deployment.launch_worker(frozen_when_ready(), wait=False)
    job_id = store.submit()
    victim = deployment.launch_worker(Point(FINISH, "after"), wait=False, lease_seconds=0.5)
    victim.wait_until_killed()
    ended = get_job(store.database, "default", job_id)
    assert ended.status is JobStatus.SUCCEEDED
    rescuer.wait_until_frozen()
    rescuer.thaw()
    store.wait_for(store.submit(token=8))
    wait_until(lambda: batch_count(store) == 1, "the first batch to be removed", SECONDS)
    assert get_job(store.database, "default", job_id) == ended, "the times of the job have not changed, either"
    assert_succeeded_once(store, job_id, 1)


@pytest.mark.faults
@pytest.mark.parametrize("point", SWEEPING, ids=names_of(SWEEPING))
def test_a_sweep_killed_at_a_lost_batch_has_returned_all_or_nothing_of_it(
    deployment: FaultyDeployment, store: Store, point: Point
) -> None:
    job_id = store.submit(chunks=CHUNKS)
    lost = deployment.launch_worker(Point(CLAIM, "after"), wait=False, lease_seconds=0.2, sweep_seconds=600)
    lost.wait_until_killed()
    expire_leases(store)
    sweeper = deployment.launch_worker(point, wait=False, poll_seconds=600)
    sweeper.wait_until_killed()
    if point.place == SWEEP:
        assert suspects(store) == CHUNKS, "the worker's other thread may have claimed some of them before the kill"
    else:
        assert (claimed(store), suspects(store)) == (CHUNKS, 0)
    deployment.launch_worker()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, CHUNKS)


@pytest.mark.faults
@pytest.mark.parametrize("point", RELEASING, ids=names_of(RELEASING))
def test_the_work_of_a_worker_killed_while_it_gives_it_back_is_done_by_another(
    deployment: FaultyDeployment, store: Store, point: Point
) -> None:
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
def test_stopping_workers_use_up_no_attempts_of_a_chunk(deployment: FaultyDeployment, store: Store) -> None:
    job_id = store.submit(chunks=100)

    def has_more(scored: int) -> bool:
        return store.scored_items(job_id) > scored

    for _ in range(4):  # this is more often than a chunk may fail
        scored = store.scored_items(job_id)
        stopping = deployment.launch_worker(mode="slow", sweep_seconds=600)
        wait_until(partial(has_more, scored), "more scores")
        assert stopping.terminate() == 0
        assert (claimed(store), batch_count(store), suspects(store)) == (0, 0, 0), "all is given back unsuspected"
    assert store.status(job_id) is JobStatus.RUNNING
    deployment.launch_worker()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 100)
