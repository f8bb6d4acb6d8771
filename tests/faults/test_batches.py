"""Processes are killed in the middle of a batch: each line is answered once, in the order of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from sqlalchemy import func, select

from jobs.file_batches.tables import batch_lines, file_batches
from jobs.files.tables import files
from jobs.invariants import find_violations
from jobs.store.tables import jobs
from tests.end_to_end.deployment import KEY
from tests.faults.deployment import SECONDS, FaultyDeployment, names_of
from tests.faults.injection.places import (
    ACCEPT_FILE,
    CANCEL_JOBS,
    CREATE_BATCH,
    END_BATCH,
    FEED,
    FINISH,
    STAGE_FILE,
    WRITE_LINES,
)
from tests.faults.injection.points import Point
from tests.services import PostgresServer, wait_until
from tests.stores import migrate_store
from tests.workers.conftest import Store

pytestmark = pytest.mark.faults

LINES = 2_600
QUERIES, ITEMS = 50, 600
QUICK: dict[str, Any] = {"lease_seconds": 0.5, "batch_poll_seconds": 0.05}

WORKING = {
    Point(FEED, "commit", nth=2): "sqlite",
    Point(FEED, "after", nth=2): "postgres",
    Point(WRITE_LINES, "commit", nth=3): "postgres",
    Point(WRITE_LINES, "after", nth=3): "sqlite",
    Point(END_BATCH, "commit"): "postgres",
}
"""An API process is killed there while it works on a batch, on this database."""

REQUESTS = {
    Point(STAGE_FILE, "commit"): "sqlite",
    Point(ACCEPT_FILE, "after"): "postgres",
    Point(CREATE_BATCH, "after"): "sqlite",
}
"""An API process is killed there before it answers, on this database."""


def on_their_databases(points: Mapping[Point, str]) -> pytest.MarkDecorator:
    """Run a test once for each point."""
    return pytest.mark.parametrize(
        ("store_url", "point"),
        [(name, point) for point, name in points.items()],
        indirect=["store_url"],
        ids=names_of(list(points)),
    )


def lines() -> bytes:
    """Return a file whose every hundredth line is broken."""

    def one(number: int) -> str:
        if number % 100 == 17:
            return "{broken"
        body = {"query": [5, number % QUERIES], "items": [[7, number % ITEMS]], "label_token_ids": [9, 10]}
        return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/score", "body": body})

    return "\n".join(map(one, range(LINES))).encode()


def client_of(deployment: FaultyDeployment) -> OpenAI:
    return OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{deployment.port}/v1", timeout=20, max_retries=0)


def create(client: OpenAI, file_id: str, **given: Any) -> str:
    """Create a batch. Return its id."""
    endpoint: Any = "/v1/score"
    return client.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h", **given).id


@pytest.fixture
def beside(tmp_path: Path, store_url: str, no_redis: str) -> Iterator[FaultyDeployment]:
    """A second API process on the same store, which goes on when the first one is gone."""
    (tmp_path / "beside").mkdir()
    with FaultyDeployment(tmp_path / "beside", store_url, no_redis, **QUICK) as beside:
        yield beside


def end_of(client: OpenAI, batch_id: str) -> openai.types.Batch:
    """Return a batch once it has ended."""

    def has_ended() -> bool:
        try:
            return client.batches.retrieve(batch_id).status in ("completed", "failed", "expired", "cancelled")
        except (openai.APIConnectionError, openai.InternalServerError):
            return False

    wait_until(has_ended, "the batch to end", SECONDS)
    return client.batches.retrieve(batch_id)


def read(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(one) for one in client.files.content(file_id).text.splitlines()]


def assert_answered_once(client: OpenAI, batch_id: str, store: Store) -> None:
    """Assert that each good line has its answer, and each broken one its error, once and in the order of the file."""
    batch = end_of(client, batch_id)
    assert batch.status == "completed"
    output, errors = read(client, batch.output_file_id), read(client, batch.error_file_id)
    good = [f"r{number}" for number in range(LINES) if number % 100 != 17]
    assert [one["custom_id"] for one in output] == good
    assert [int(one["id"].rpartition("_")[2]) for one in errors] == list(range(17, LINES, 100))
    scores: dict[tuple[int, int], set[str]] = {}
    for one in output:
        number = int(one["custom_id"][1:])
        same = scores.setdefault((number % QUERIES, number % ITEMS), set())
        same.add(json.dumps(one["response"]["body"]["scores"]))
    assert all(len(same) == 1 for same in scores.values()), "the same request has the same scores"
    assert len(set().union(*scores.values())) > 1
    with store.database.read() as tx:
        assert tx.scalar(select(func.count()).select_from(jobs)) == len(good)
        assert tx.scalar(select(func.count()).select_from(batch_lines)) == LINES
    assert find_violations(store.database, full=True) == []


@on_their_databases(WORKING)
def test_a_batch_whose_api_process_was_killed_is_completed_by_another(
    deployment: FaultyDeployment, beside: FaultyDeployment, store: Store, point: Point
) -> None:
    api = deployment.launch_api(point, **QUICK)
    deployment.launch_worker(for_api=True, wait=False)
    client = client_of(deployment)
    file_id = client.files.create(file=("a", lines()), purpose="batch").id
    batch_id = create(client, file_id)
    api.wait_until_killed()
    beside.launch_api()
    assert_answered_once(client_of(beside), batch_id, store)


@on_their_databases(REQUESTS)
def test_a_file_or_batch_without_an_answer_that_is_sent_again_is_made_once(
    deployment: FaultyDeployment, beside: FaultyDeployment, store: Store, point: Point
) -> None:
    api = deployment.launch_api(point, upload_timeout_seconds=1, **QUICK)
    beside.launch_api(wait=False, upload_timeout_seconds=1)
    client = client_of(deployment)
    file_key, batch_key = ({"Idempotency-Key": name} for name in ("file", "batch"))

    def make_both(client: OpenAI) -> str:
        file_id = client.files.create(file=("a", lines()), purpose="batch", extra_headers=file_key).id
        return create(client, file_id, extra_headers=batch_key)

    with pytest.raises(openai.APIConnectionError):
        make_both(client)
    api.wait_until_killed()
    beside.wait_for_api()
    again = client_of(beside).with_options(max_retries=6)  # a file that is abandoned is swept after a second
    batch_id = make_both(again)
    beside.launch_worker(for_api=True, wait=False)
    assert_answered_once(again, batch_id, store)
    with store.database.read() as tx:
        assert tx.scalar(select(func.count()).select_from(file_batches)) == 1
    wait_until(lambda: files_left(store) == 3, "only the file and the two of the batch are left", SECONDS)


def files_left(store: Store) -> int:
    with store.database.read() as tx:
        return int(tx.scalar(select(func.count()).select_from(files)) or 0)


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_cancellation_goes_on_in_another_process(
    deployment: FaultyDeployment, beside: FaultyDeployment, store: Store
) -> None:
    api = deployment.launch_api(Point(CANCEL_JOBS, "commit", nth=2), **QUICK)
    client = client_of(deployment)
    batch_id = create(client, client.files.create(file=("a", lines()), purpose="batch").id)

    def fed() -> bool:
        with store.database.read() as tx:
            return (tx.scalar(select(func.count()).select_from(jobs)) or 0) > 500

    wait_until(fed, "lines to be jobs", SECONDS)
    client.batches.cancel(batch_id)
    api.wait_until_killed()
    beside.launch_api()
    other = client_of(beside)
    batch = end_of(other, batch_id)
    assert (batch.status, batch.output_file_id) == ("cancelled", None)
    assert [int(one["id"].rpartition("_")[2]) for one in read(other, batch.error_file_id)] == list(range(LINES))
    assert find_violations(store.database, full=True) == []


def test_a_batch_outlives_crashes_of_its_workers_and_of_the_database(tmp_path: Path, no_redis: str) -> None:
    postgres = PostgresServer()
    url = postgres.url(postgres.create_database())
    migrate_store(url)
    store = Store(url)
    try:
        with FaultyDeployment(tmp_path, url, no_redis, **QUICK) as deployment:
            deployment.launch_api()
            killed = [
                deployment.launch_worker(Point(FINISH, "commit", nth=2), for_api=True, wait=False, mode="slow")
                for _ in range(2)
            ]
            client = client_of(deployment)
            batch_id = create(client, client.files.create(file=("a", lines()), purpose="batch").id)
            for worker in killed:
                worker.wait_until_killed()
            postgres.kill()
            postgres.start()
            deployment.launch_worker(for_api=True, wait=False)
            wait_until(lambda: client.batches.retrieve(batch_id).request_counts, "the database to be back", SECONDS)
            postgres.restart()
            assert_answered_once(client, batch_id, store)
    finally:
        store.database.close()
        postgres.close()
