"""A connection to PostgreSQL is cut at a COMMIT, or falls silent there.

So the client does not know whether the COMMIT was carried out. The same holds for a statement that is a transaction of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import func, select

from jobs.queue.claims.claim_choice import FEW_CHUNKS
from jobs.store.records import JobStatus, Origin
from jobs.store.tables import chunks, idempotency_keys, jobs, prefixes
from tests.faults.deployment import SECONDS, FaultyDeployment
from tests.faults.injection.cutting_proxy import Cut, CuttingProxy
from tests.faults.outcomes import assert_succeeded_once
from tests.services import PostgresServer, wait_until
from tests.workers.conftest import Store

pytestmark = pytest.mark.faults

BODY: dict[str, object] = {"query": [5, 6], "items": [[7], [8]], "label_token_ids": [9, 10]}


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(postgres.port)
    yield proxy
    proxy.close()


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    """The store, reached without the proxy."""
    store = Store(postgres_url)
    yield store
    store.database.close()


@pytest.fixture
def deployment(
    tmp_path: Path, postgres_url: str, postgres: PostgresServer, proxy: CuttingProxy, no_redis: str
) -> Iterator[FaultyDeployment]:
    """A deployment whose processes reach the database through the proxy."""
    through_proxy = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")
    with FaultyDeployment(tmp_path, through_proxy, no_redis, statement_seconds=2) as deployment:
        yield deployment


def rows(store: Store) -> tuple[int, ...]:
    """Return the numbers of jobs, chunks, prefixes and idempotency keys."""
    with store.database.read() as connection:
        counts = [
            connection.scalar(select(func.count()).select_from(t)) for t in (jobs, chunks, prefixes, idempotency_keys)
        ]
    return tuple(count or 0 for count in counts)


def post_until_accepted(deployment: FaultyDeployment) -> httpx2.Response:
    """Submit the job again. Just after a silence, requests get a 503 while another thread is trying to connect."""
    responses: list[httpx2.Response] = []

    def answered() -> bool:
        response = deployment.post(BODY, "key")
        assert response is not None
        responses.append(response)
        return response.status_code != 503

    wait_until(answered, "the database is used again", SECONDS)
    return responses[-1]


@pytest.mark.parametrize("cut", Cut)
def test_a_submission_cut_at_its_commit_is_stored_completely_or_not_at_all_and_can_be_repeated(
    deployment: FaultyDeployment, store: Store, proxy: CuttingProxy, cut: Cut
) -> None:
    deployment.launch_api()
    proxy.cut_after(b"INSERT INTO jobs", cut)
    response = deployment.post(BODY, "key")
    assert response is not None
    assert (response.status_code, response.json()["error"]["code"]) == (503, "storage_unavailable")
    assert int(response.headers["retry-after"]) >= 1
    assert proxy.cuts == 1
    wait_until(lambda: rows(store) == ((1, 1, 1, 1) if cut.commits else (0, 0, 0, 0)), "all of it, or nothing")

    again = post_until_accepted(deployment)
    assert again.status_code == 202
    assert again.headers.get("idempotency-replayed") == ("true" if cut.commits else None)
    assert rows(store) == (1, 1, 1, 1)
    deployment.launch_worker(for_api=True)
    assert deployment.result(again.json()["id"])["scores"]


@pytest.mark.parametrize("cut", Cut)
def test_a_submission_cut_at_its_one_statement_is_stored_completely_or_not_at_all(
    deployment: FaultyDeployment, store: Store, proxy: CuttingProxy, cut: Cut
) -> None:
    """Without a key, a job is stored by one statement, which is a transaction of its own."""
    deployment.launch_api()
    proxy.cut_after(b"INSERT INTO jobs", cut)
    response = deployment.post(BODY)
    assert response is not None
    assert (response.status_code, response.json()["error"]["code"]) == (503, "storage_unavailable")
    assert proxy.cuts == 1
    wait_until(lambda: rows(store) == ((1, 1, 1, 0) if cut.commits else (0, 0, 0, 0)), "all of it, or nothing")


@pytest.mark.parametrize("origin", Origin)
@pytest.mark.parametrize("cut", Cut)
def test_a_finish_cut_at_its_commit_counts_once(
    deployment: FaultyDeployment, store: Store, proxy: CuttingProxy, cut: Cut, origin: Origin
) -> None:
    """The finish of a call is one statement, that of a job is a transaction around one."""
    job_id = store.submit(chunks=3, origin=origin)
    proxy.cut_after(b"INSERT INTO chunk_scores", cut)
    worker = deployment.launch_worker(sweep_seconds=600)
    store.wait_for(job_id)
    assert proxy.cuts == 1
    assert_succeeded_once(store, job_id, 3)
    wait_until(lambda: worker.logged("could not store scores yet"), "the failure is logged", SECONDS)
    assert worker.logged("scores came too late") == cut.commits, "the first commit was carried out"
    assert worker.terminate() == 0


@pytest.mark.parametrize("count", [3, FEW_CHUNKS], ids=["one statement", "a transaction"])
@pytest.mark.parametrize("cut", Cut)
def test_the_chunks_of_a_claim_cut_at_its_commit_are_scored_after_one_lease_at_most(
    deployment: FaultyDeployment, store: Store, proxy: CuttingProxy, cut: Cut, count: int
) -> None:
    """A claim of all that waits is one statement, if that are few chunks."""
    job_id = store.submit(chunks=count)
    proxy.cut_after(b"INSERT INTO batches", cut)
    worker = deployment.launch_worker(lease_seconds=1)
    store.wait_for(job_id, JobStatus.SUCCEEDED)
    assert proxy.cuts == 1
    assert_succeeded_once(store, job_id, count)
    assert worker.terminate() == 0
