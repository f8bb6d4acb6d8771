"""An API process is killed (SIGKILL) during a request: what it has committed stays, and the request can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import httpx2
import pytest
from sqlalchemy import func, select

from jobs.invariants import find_violations
from jobs.store.records import JobStatus
from jobs.store.tables import chunk_inputs, chunks, jobs
from tests.faults.deployment import SECONDS, FaultyDeployment, names_of
from tests.faults.injection.places import ACCEPT, CANCEL, CLAIM, REMOVE_JOB, RETURN_BATCH
from tests.faults.injection.points import Point
from tests.faults.outcomes import assert_succeeded_once, claimed, suspects
from tests.services import wait_until
from tests.workers.conftest import Store

pytestmark = pytest.mark.faults

BODY: dict[str, object] = {"query": [5, 6], "items": [[7], [8]], "label_token_ids": [9, 10]}

CLIENTS = 12

CANCELLING = [Point(CANCEL, "commit"), Point(CANCEL, "after")]


@pytest.fixture
def beside(tmp_path: Path, store_url: str, no_redis: str) -> Iterator[FaultyDeployment]:
    """A second API process on the same store, which clients can ask when the first one is gone."""
    (tmp_path / "beside").mkdir()
    with FaultyDeployment(tmp_path / "beside", store_url, no_redis) as beside:
        yield beside


def rows(store: Store) -> tuple[int, int]:
    """Return the numbers of jobs and chunks in the store, whether or not readers see them."""
    with store.database.read() as connection:
        return (
            connection.scalar(select(func.count()).select_from(jobs)) or 0,
            connection.scalar(select(func.count()).select_from(chunks)) or 0,
        )


@pytest.mark.parametrize(
    "point",
    [
        # The job is committed, and neither the ring nor the answer was sent.
        Point(ACCEPT, "after"),
        Point(ACCEPT, "commit"),
        Point(ACCEPT, "before"),
    ],
    ids=lambda point: point.when,
)
def test_a_submission_without_an_answer_that_is_sent_again_makes_one_job(
    deployment: FaultyDeployment, beside: FaultyDeployment, store: Store, point: Point
) -> None:
    beside.launch_api(wait=False)
    worker = deployment.launch_worker(for_api=True, wait=False)
    api = deployment.launch_api(point)
    assert deployment.post(BODY, "key") is None, "no answer came"
    api.wait_until_killed()
    committed = point.when == "after"
    if committed:
        wait_until(lambda: only_job_succeeded(store), "the job is done without a ring", SECONDS)
    else:
        assert rows(store) == (0, 0)
    beside.wait_for_api()
    worker.wait_until_ready()
    again = beside.post(BODY, "key")
    assert again is not None
    assert again.status_code == 202
    assert again.headers.get("idempotency-replayed") == ("true" if committed else None)
    assert beside.result(again.json()["id"])["scores"]
    assert rows(store) == (1, 1)


@pytest.mark.parametrize("when", ["before", "commit", "after"])
def test_what_was_answered_before_the_api_was_killed_with_a_group_is_stored_and_nothing_is_stored_in_part(
    deployment: FaultyDeployment, store: Store, when: Literal["before", "commit", "after"]
) -> None:
    api = deployment.launch_api(Point(ACCEPT, when, nth=4))

    def submit_until_killed(number: int) -> list[str]:
        promised: list[str] = []
        while (answer := post(deployment, BODY | {"query": [5, 6, number, len(promised)]})) is not None:
            assert answer.status_code == 202
            promised.append(answer.json()["id"])
        return promised

    # One by itself, since the answers of the groups just before the kill may be on their way still.
    first = post(deployment, BODY | {"query": [5, 6]})
    assert first is not None
    promised = [first.json()["id"]]
    with ThreadPoolExecutor(CLIENTS) as pool:
        promised += [job_id for ids in pool.map(submit_until_killed, range(CLIENTS)) for job_id in ids]
    api.wait_until_killed()
    with store.database.read() as connection:
        stored = set(connection.scalars(select(jobs.c.id)))
        whole = set(connection.scalars(select(chunks.c.job_id).join(chunk_inputs)))
    assert set(promised) <= stored == whole
    assert find_violations(store.database, full=True) == []


def post(deployment: FaultyDeployment, body: dict[str, object]) -> httpx2.Response | None:
    """Submit a job. Return None if no answer came."""
    try:
        return deployment.client.post("/v1/jobs", json=body)
    except httpx2.TransportError:
        return None


def only_job_succeeded(store: Store) -> bool:
    """Return whether the only job in the store has succeeded."""
    with store.database.read() as connection:
        return connection.scalars(select(jobs.c.status)).all() == [JobStatus.SUCCEEDED.value]


@pytest.mark.parametrize("point", CANCELLING, ids=names_of(CANCELLING))
def test_a_cancellation_without_an_answer_is_done_completely_or_not_at_all(
    deployment: FaultyDeployment, beside: FaultyDeployment, store: Store, point: Point
) -> None:
    beside.launch_api(wait=False)
    api = deployment.launch_api(point)
    job_id = store.submit(chunks=3)
    with pytest.raises(httpx2.TransportError):
        deployment.client.post(f"/v1/jobs/{job_id}/cancel")
    api.wait_until_killed()
    assert store.status(job_id) is (JobStatus.QUEUED if point.when == "commit" else JobStatus.CANCELLED)
    beside.wait_for_api()
    assert beside.client.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    assert store.status(job_id) is JobStatus.CANCELLED


def test_a_deletion_that_is_interrupted_is_complete_for_readers_and_a_sweep_removes_the_rows(
    deployment: FaultyDeployment, beside: FaultyDeployment, store: Store
) -> None:
    api = deployment.launch_api(Point(REMOVE_JOB, "before"), sweep_seconds=600)
    job_id = store.submit(chunks=3)
    with pytest.raises(httpx2.TransportError):
        deployment.client.delete(f"/v1/jobs/{job_id}")
    api.wait_until_killed()
    assert rows(store) == (1, 3)
    beside.launch_api()
    assert beside.client.get(f"/v1/jobs/{job_id}").status_code == 404
    wait_until(lambda: rows(store) == (0, 0), "the sweep removes its rows", SECONDS)


def test_a_lost_batch_is_returned_by_another_after_an_api_process_was_killed_in_its_sweep(
    deployment: FaultyDeployment, store: Store
) -> None:
    job_id = store.submit(chunks=3)
    lost = deployment.launch_worker(Point(CLAIM, "after"), wait=False, lease_seconds=0.2, sweep_seconds=600)
    lost.wait_until_killed()
    api = deployment.launch_api(Point(RETURN_BATCH, "after"), wait=False)
    api.wait_until_killed()
    assert (claimed(store), suspects(store)) == (3, 0)
    deployment.launch_worker()
    store.wait_for(job_id)
    assert_succeeded_once(store, job_id, 3)
