"""A chunk that takes down whatever process scores it."""

from __future__ import annotations

import math

import pytest

from jobs.queue.read import get_job
from jobs.store.records import JobStatus
from scoring.error_codes import ErrorCode
from tests.faults.deployment import FaultyDeployment
from tests.faults.outcomes import assert_succeeded_once
from tests.services import wait_until
from tests.workers.conftest import Store
from tests.workers.engines import POISON

GOOD = 200
ATTEMPTS = 3


@pytest.mark.faults
def test_a_poison_chunk_is_tried_a_bounded_number_of_times_and_fails_none_of_its_200_neighbours(
    deployment: FaultyDeployment, store: Store
) -> None:
    poison = store.submit(token=POISON)  # the most urgent, so that none of a batch is done before it
    good = [store.submit() for _ in range(GOOD)]

    def launch() -> object:
        # The leases are short, the workers many: what takes long is starting one.
        return deployment.launch_worker(mode="dying", wait=False, lease_seconds=1, max_attempts=ATTEMPTS)

    workers = [launch() for _ in range(2)]
    deaths = 0

    def done() -> bool:
        nonlocal deaths
        for place, worker in enumerate(workers):
            if worker.process.poll() is not None:  # type: ignore[attr-defined]
                worker.wait_until_killed()  # type: ignore[attr-defined]
                deaths += 1
                workers[place] = launch()
        return all(store.status(job_id).ended for job_id in [poison, *good])

    wait_until(done, "all jobs end", 240)
    failed = get_job(store.database, "default", poison)
    assert failed.status is JobStatus.FAILED
    assert failed.error is not None
    assert failed.error.code is ErrorCode.INTERNAL_ERROR
    assert f"{ATTEMPTS} attempts" in failed.error.message
    for job_id in good:
        assert_succeeded_once(store, job_id, 1)
    # Halved until it is alone, and alone as often as a chunk may fail.
    assert ATTEMPTS <= deaths <= math.ceil(math.log2(GOOD + 1)) + ATTEMPTS
