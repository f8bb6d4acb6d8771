"""A poison chunk: it kills any process that scores it."""

from __future__ import annotations

import math

import pytest

from jobs.queue.read import get_job
from jobs.store.records import JobStatus
from scoring.error_codes import ErrorCode
from tests.faults.deployment import FaultyDeployment, Launched
from tests.faults.outcomes import assert_succeeded_once
from tests.services import wait_until
from tests.workers.conftest import Store
from tests.workers.engines import POISON

GOOD = 200
ATTEMPTS = 3


@pytest.mark.faults
def test_a_poison_chunk_fails_after_a_bounded_number_of_attempts_and_its_200_neighbours_succeed(
    deployment: FaultyDeployment, store: Store
) -> None:
    poison = store.submit(token=POISON)  # submitted first, so no other chunk of a batch is scored before it
    good = [store.submit() for _ in range(GOOD)]

    def launch() -> Launched:
        # Starting a worker takes longest here, so two are started at a time and leases are short.
        return deployment.launch_worker(mode="dying", wait=False, lease_seconds=1, max_attempts=ATTEMPTS)

    workers = [launch() for _ in range(2)]
    deaths = 0

    def done() -> bool:
        nonlocal deaths
        for place, worker in enumerate(workers):
            if worker.process.poll() is not None:
                worker.wait_until_killed()
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
    # Batches with the poison are halved until it is alone, and it is tried alone as often as a chunk may fail.
    assert ATTEMPTS <= deaths <= math.ceil(math.log2(GOOD + 1)) + ATTEMPTS
