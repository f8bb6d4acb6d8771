"""Redis loses rings or all its data, or is away: jobs are accepted, found and done without it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from bell.redis_bell import RedisBell
from jobs.store.database import StorageUnavailable
from jobs.store.records import JobStatus
from tests.faults.deployment import SECONDS, FaultyDeployment
from tests.faults.outcomes import assert_succeeded_once
from tests.services import RedisServer, wait_until
from tests.workers.conftest import MODEL, Store

pytestmark = pytest.mark.faults

PREFIX = "of-this-test"
NEVER = 600.0
BODY: dict[str, object] = {"query": [5, 6], "items": [[7], [8]], "label_token_ids": [9, 10]}


@pytest.fixture
def deployment(tmp_path: Path, store_url: str, redis_server: RedisServer) -> Iterator[FaultyDeployment]:
    """A deployment with a Redis."""
    with FaultyDeployment(tmp_path, store_url, redis_server.url, bell_prefix=PREFIX) as deployment:
        yield deployment


@pytest.fixture
def bell(redis_server: RedisServer) -> Iterator[RedisBell]:
    bell = RedisBell(redis_server.url, PREFIX)
    yield bell
    bell.close()


def test_a_job_whose_ring_is_lost_in_a_frozen_worker_is_done_by_another(
    deployment: FaultyDeployment, store: Store, redis_server: RedisServer, bell: RedisBell, no_redis: str
) -> None:
    """Redis hands a message to a waiting consumer, and stores it again only once the consumer has read it."""
    consumer = deployment.launch_worker(poll_seconds=NEVER, lease_seconds=1)
    queue = f"{PREFIX}:ring.{MODEL}"
    job_id = ""

    with redis.Redis.from_url(redis_server.url) as client:

        def swallowed() -> bool:
            nonlocal job_id
            consumer.freeze()
            try:
                job_id = store.submit()
            except StorageUnavailable:
                consumer.thaw()  # it was writing to SQLite at this moment
                return False
            bell.ring(MODEL)
            if client.llen(queue) == 0:
                return True
            consumer.thaw()  # it was not waiting for Redis at this moment
            store.wait_for(job_id)
            return False

        wait_until(swallowed, "a ring is handed to a frozen worker")
        # This worker hears no ring, because its Redis does not exist.
        deployment.launch_worker(redis_url=no_redis)
        store.wait_for(job_id)
        assert_succeeded_once(store, job_id, 1)
        consumer.kill()
        left = client.llen(queue) + client.hlen(f"{PREFIX}:unacked")
        assert left == 0, "Redis does not have the ring any more"


def test_a_job_is_done_while_redis_is_emptied_and_rung_a_hundred_times(
    deployment: FaultyDeployment, store: Store, redis_server: RedisServer, bell: RedisBell
) -> None:
    workers = [deployment.launch_worker(mode="slow") for _ in range(2)]
    job_id = store.submit(chunks=40)
    wait_until(lambda: store.scored_items(job_id) > 0, "the first scores")
    for _ in range(100):
        redis_server.flush()
        bell.ring(MODEL)
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 40)
    assert [worker.terminate() for worker in workers] == [0, 0]


def test_a_worker_that_was_started_without_redis_hears_rings_once_it_is_there(
    deployment: FaultyDeployment, store: Store, redis_server: RedisServer, bell: RedisBell
) -> None:
    redis_server.stop()
    try:
        deployment.launch_worker(poll_seconds=NEVER)
    finally:
        redis_server.start()
    job_id = store.submit()

    def done_after_a_ring() -> bool:
        bell.ring(MODEL)
        return store.status(job_id) is JobStatus.SUCCEEDED

    wait_until(done_after_a_ring, "the ring is heard", SECONDS)


def test_jobs_submitted_without_redis_are_accepted_quickly_and_done(
    deployment: FaultyDeployment, redis_server: RedisServer
) -> None:
    deployment.launch_worker(for_api=True, wait=False)
    deployment.launch_api()
    redis_server.stop()
    try:
        started = time.monotonic()
        job_ids = [deployment.submit(BODY) for _ in range(10)]
        assert time.monotonic() - started < 5.0, "a submission does not wait for Redis"
        for job_id in job_ids:
            assert deployment.result(job_id)["scores"]
    finally:
        redis_server.start()
    assert deployment.result(deployment.submit(BODY))["scores"]
