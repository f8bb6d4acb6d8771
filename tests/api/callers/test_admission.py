"""Back-pressure: work that could not be scored in time is refused, but not repeated requests, and none when idle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import event, text

from api.callers import admission
from api.callers.admission import JITTER, MAX_GOOD_FOR_SECONDS, RETRY_SECONDS, Admission, too_many_chunks
from api.callers.compatibility import CompatibilityCheck
from api.threads import Threads
from jobs.queue.statistics import count_waiting
from jobs.queue.worker_registry import register
from jobs.store.database import Database
from jobs.store.records import WorkerRecord
from jobs.tenancy.keys import Scope, create_key
from scoring.work import work_of_prefix
from tests.api.serving import DEADLINE_SECONDS, RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import quick_on
from tests.jobs.work import submission
from tests.services import wait_until

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}


class Queue:
    """An API and a worker whose claims can be stopped and whose measured pace can be set."""

    def __init__(self, api: RunningApi, worker: StandInWorker) -> None:
        self.api = api
        self.worker = worker
        self.database: Database = api.app.state.service.store.database

    def fill(
        self, *, calls: int = 0, jobs: int = 0, waited: float = 100.0, client: httpx2.Client | None = None, **body: Any
    ) -> None:
        """Let calls and jobs wait, as if for ``waited`` seconds already, for a worker of one token per second."""
        self.worker.gate.clear()
        self.pace(1_000_000.0)  # so that nothing is refused until all has been sent
        for priority in ["interactive"] * calls + ["normal"] * jobs:
            sent = (client or self.api.client).post("/v1/jobs", json=BODY | {"priority": priority} | body)
            assert sent.status_code == 202, sent.text
        with self.database.write() as connection:
            connection.execute(text("UPDATE chunks SET due_at = due_at - :waited"), {"waited": waited})
        self.pace(1.0)

    def pace(self, tokens_per_second: float | None) -> None:
        """Set the measured pace of the worker, and let the API read it."""
        with self.database.write() as connection:
            connection.execute(text("UPDATE workers SET tokens_per_second = :rate"), {"rate": tokens_per_second})
        # Not by /readyz, whose answer of a moment ago is the answer to all who ask.
        self.api.app.state.service.acceptance.doors.default.compatibility.current()

    def call(self, timeout: float = 0.5, headers: dict[str, str] | None = None, **body: Any) -> httpx2.Response:
        return self.api.client.post("/v1/score", json=BODY | {"timeout": timeout} | body, headers=headers)

    def jobs(self) -> int:
        with self.database.read() as connection:
            return int(connection.scalar(text("SELECT count(*) FROM jobs")) or 0)

    @contextmanager
    def client_of(self, tenant: str) -> Iterator[httpx2.Client]:
        """Create a tenant. Yield a client with its key."""
        key, _ = create_key(self.database, tenant, "test", frozenset(Scope))
        with self.api.client_with(key) as client:
            yield client


@pytest.fixture
def queue(fresh: tuple[RunningApi, StandInWorker]) -> Queue:
    return Queue(*fresh)


def code(response: httpx2.Response) -> str:
    return str(response.json()["error"]["code"])


def refused(send: Callable[[], httpx2.Response]) -> httpx2.Response:
    """Send requests until one is refused, and return that answer. Cached counts may let some pass at first.

    On a busy machine a count takes long, and what took long is used for long.
    """
    answers: list[httpx2.Response] = []

    def is_refused() -> bool:
        answers.append(send())
        return answers[-1].status_code == 503

    wait_until(is_refused, "it is refused", MAX_GOOD_FOR_SECONDS + DEADLINE_SECONDS)
    return answers[-1]


@quick_on("sqlite")
def test_a_call_that_would_time_out_is_refused_with_a_retry_after(queue: Queue) -> None:
    queue.fill(calls=3)
    response = refused(queue.call)
    jobs = queue.jobs()
    assert code(response) == "overloaded"
    assert "/v1/jobs" in response.json()["error"]["message"]
    estimated = count_waiting(
        queue.database, queue.api.app.state.service.reading.card, 100, interactive_only=True
    ).tokens
    assert estimated - 0.5 <= int(response.headers["retry-after"]) <= (estimated - 0.5) * (1 + JITTER) + 1
    assert code(queue.call()) == "overloaded"
    assert queue.jobs() == jobs, "no job was accepted"
    # A call without items is answered, a job waits, and a call that seems to have enough time is accepted.
    assert queue.call(timeout=0.5, items=[]).status_code == 200
    queue.api.submit(**BODY)
    queue.pace(10_000.0)
    eventually(lambda: code(queue.call(timeout=0.05)) == "timeout", "it is accepted")
    queue.worker.gate.set()
    eventually(lambda: queue.call(timeout=20).status_code == 200, "it is scored")


def test_retry_after_is_bounded(queue: Queue) -> None:
    queue.fill(calls=1)
    queue.pace(0.001)
    least, most = RETRY_SECONDS
    assert least < int(refused(queue.call).headers["retry-after"]) <= most * (1 + JITTER)


@quick_on("sqlite")
def test_waiting_bulk_jobs_do_not_cause_calls_to_be_refused(queue: Queue) -> None:
    queue.fill(jobs=20)
    assert code(queue.call(timeout=0.05)) == "timeout"


@quick_on("sqlite")
def test_a_burst_of_calls_that_have_just_arrived_is_no_backlog(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAITED_SECONDS", 30.0)  # as the calls may take longer to send than a second
    queue.fill(calls=20, waited=0.0)
    assert code(queue.call(timeout=0.01)) == "timeout"


@quick_on("sqlite")
def test_no_call_is_refused_while_no_work_waits(queue: Queue) -> None:
    """Calls are accepted however slow the worker is and however short their timeout is."""
    queue.pace(0.000_001)
    for _ in range(5):
        assert queue.call(timeout=5).status_code == 200


def test_no_call_is_refused_before_a_worker_has_measured_its_pace(queue: Queue) -> None:
    queue.fill(calls=3)
    queue.pace(None)
    assert code(queue.call(timeout=0.05)) == "timeout"


@quick_on("sqlite")
def test_a_repeated_call_that_was_accepted_earlier_is_not_refused(queue: Queue) -> None:
    keyed = {"Idempotency-Key": "key-1"}
    body = BODY | {"timeout": 5.0}
    first = queue.api.client.post("/v1/score", json=body, headers=keyed)
    assert first.status_code == 200
    queue.fill(calls=3)
    refused(lambda: queue.call(timeout=0.5))
    again = queue.api.client.post("/v1/score", json=body, headers=keyed)
    assert (again.status_code, again.json()["scores"]) == (200, first.json()["scores"])
    assert again.headers["idempotency-replayed"] == "true"
    # A call with a new key is refused, and a key of another request gets its own error.
    assert code(queue.call(headers={"Idempotency-Key": "key-2"})) == "overloaded"
    assert code(queue.call(headers=keyed, timeout=0.25)) == "idempotency_key_reused"


@pytest.fixture
def bounded(model: TinyModel, store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue whose API has the settings of the test."""
    with running_api(model.directory, store_url, tmp_path, **request.param) as (api, worker):
        assert worker is not None
        yield Queue(api, worker)


@quick_on("sqlite")
@pytest.mark.parametrize("bounded", [{"max_waiting_chunks": 3}, {"max_waiting_seconds": 10.0}], indirect=True)
def test_jobs_are_refused_above_a_limit_and_accepted_again_below_it(bounded: Queue) -> None:
    keyed = {"Idempotency-Key": "key-1"}
    bounded.worker.gate.clear()
    job_id = bounded.api.submit(headers=keyed, **BODY)["id"]
    bounded.fill(jobs=3)
    response = refused(lambda: bounded.api.client.post("/v1/jobs", json=BODY))
    assert code(response) == "overloaded"
    assert 1 <= int(response.headers["retry-after"]) <= RETRY_SECONDS[1] * (1 + JITTER)
    jobs = bounded.jobs()
    lines = "\n".join(json.dumps(line) for line in (BODY | {"items": None}, *BODY["items"]))
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "key-2"}
    for _ in range(2):  # the first refusal has released the key
        assert code(bounded.api.client.post("/v1/jobs", content=lines, headers=headers)) == "overloaded"
    # A sweep that has just seen the rows of the refused upload removes them instead of the request.
    eventually(lambda: bounded.jobs() == jobs, "no job was accepted")
    assert bounded.api.submit(headers=keyed, **BODY)["id"] == job_id
    bounded.api.submit(**BODY | {"items": []})
    bounded.worker.gate.set()
    bounded.pace(10_000.0)
    eventually(lambda: bounded.api.client.post("/v1/jobs", json=BODY).status_code == 202, "jobs are taken again")


@pytest.mark.parametrize("bounded", [{"max_waiting_chunks": 100, "chunk_items": 1}], indirect=True)
def test_a_tenant_that_fills_the_queue_does_not_keep_out_the_jobs_of_another(bounded: Queue) -> None:
    bounded.worker.gate.clear()
    items = {"items": [" France is"] * 150}
    bounded.api.submit(**BODY | items)
    refused(lambda: bounded.api.client.post("/v1/jobs", json=BODY))
    one = BODY | {"items": [" France is"]}
    lines = "\n".join(json.dumps(line) for line in (one | {"items": None}, *one["items"]))
    with bounded.client_of("other") as other:
        assert other.post("/v1/jobs", json=one).status_code == 202
        upload = other.post("/v1/jobs", content=lines, headers={"Content-Type": "application/x-ndjson"})
        assert upload.status_code == 202
        # With two chunks it has more than a hundredth of what may wait.
        assert code(other.post("/v1/jobs", json=one)) == "overloaded"
        assert code(other.post("/v1/jobs", content=lines, headers=upload.request.headers)) == "overloaded"
    bounded.worker.gate.set()


LONG: dict[str, Any] = {"items": [" France is" * 50] * 4}
"""A body whose work takes much longer than that of :data:`BODY`."""


def send_call(client: httpx2.Client, **body: Any) -> httpx2.Response:
    return client.post("/v1/score", json=BODY | {"timeout": 2.0} | body)


@quick_on("sqlite")
def test_the_interactive_jobs_of_one_tenant_do_not_cause_the_calls_of_another_to_be_refused(queue: Queue) -> None:
    queue.fill(calls=20, **LONG)
    queue.pace(100.0)
    refused(lambda: send_call(queue.api.client))
    with queue.client_of("other") as other:
        # The API may still reckon with the slower pace of before.
        eventually(lambda: code(send_call(other, timeout=0.5)) == "timeout", "it was accepted, and nobody scored it")
        # With a backlog of its own, the other tenant is refused, too.
        queue.fill(calls=20, client=other, **LONG)
        queue.pace(100.0)
        refused(lambda: send_call(other))
        queue.worker.gate.set()
        queue.pace(1_000_000.0)
        eventually(lambda: send_call(other, timeout=20.0).status_code == 200, "it is scored")


@quick_on("sqlite")
@pytest.mark.parametrize("bounded", [{"max_waiting_seconds": 10.0}], indirect=True)
def test_the_waiting_jobs_of_one_tenant_do_not_cause_the_jobs_of_another_to_be_refused(bounded: Queue) -> None:
    lines = "\n".join(json.dumps(line) for line in (BODY | {"items": None}, *BODY["items"]))
    as_lines = {"Content-Type": "application/x-ndjson"}
    bounded.fill(jobs=20, **LONG)
    bounded.pace(100.0)
    refused(lambda: bounded.api.client.post("/v1/jobs", json=BODY))
    with bounded.client_of("other") as other:
        assert other.post("/v1/jobs", json=BODY).status_code == 202
        assert other.post("/v1/jobs", content=lines, headers=as_lines).status_code == 202
        bounded.fill(jobs=20, client=other, **LONG)
        bounded.pace(100.0)
        refused(lambda: other.post("/v1/jobs", json=BODY))
        refused(lambda: other.post("/v1/jobs", content=lines, headers=as_lines))


@quick_on("sqlite")
def test_many_calls_that_share_a_query_are_not_refused_for_the_work_of_as_many_queries(queue: Queue) -> None:
    query = [65] * 400
    queue.fill(calls=50, query=query, items=[[66]])
    queue.pace(5_000.0)  # the query takes a tenth of a second once, and four seconds if it were computed for each call
    assert code(send_call(queue.api.client, query=query, items=[[66]], timeout=2.0)) == "timeout"


def test_many_requests_share_one_count_of_the_waiting_work(queue: Queue) -> None:
    counted: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("WITH first"):
            counted.append(statement)

    event.listen(queue.database.engine, "before_cursor_execute", record)
    service = queue.api.app.state.service
    admission = Admission(
        queue.database,
        service.threads,
        service.reading.card,
        service.acceptance.doors.default.compatibility,
        service.reading.api,
        service.acceptance.storage_quota,
        too_many_chunks(queue.database, service.reading.api),
    )
    nothing = submission(chunks=0)
    for _ in range(50):
        admission._check_call(nothing, timeout=1.0)
    assert 1 <= len(counted) <= 3


def test_no_call_waits_for_a_count_that_is_due(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted in the background, once for all calls."""
    monkeypatch.setattr("api.caching.AHEAD", 0.0)
    nothing = submission(chunks=1)
    counts: list[int] = []

    async def scenario() -> None:
        service, threads = queue.api.app.state.service, Threads()
        admission = Admission(
            queue.database,
            threads,
            service.reading.card,
            service.acceptance.doors.default.compatibility,
            service.reading.api,
            service.acceptance.storage_quota,
            too_many_chunks(queue.database, service.reading.api),
        )
        admission._check_call(nothing, timeout=1.0)
        free, looked_up = asyncio.Event(), threads.sql

        async def sql(function: Callable[[], object]) -> object:
            counts.append(1)
            await free.wait()
            return await looked_up(function)

        monkeypatch.setattr(threads, "sql", sql)
        for _ in range(20):
            await admission.admit_call(nothing, 1.0)
            await asyncio.sleep(0)
        assert counts == [1]
        free.set()
        while admission._looking is not None:
            await asyncio.sleep(0.001)
        await admission.admit_call(nothing, 1.0)
        await asyncio.sleep(0)
        assert counts == [1, 1]

    asyncio.run(scenario())


def test_the_paces_of_workers_add_up(queue: Queue) -> None:
    """A worker without a measurement counts with the average of the others."""
    queue.pace(30.0)
    card = queue.api.app.state.service.reading.card
    for name, rate in (("fast", 90.0), ("new", None)):
        record = WorkerRecord(name, card, "made-up", "none", "float32", tokens_per_second=rate)
        register(queue.database, record)
    compatibility = CompatibilityCheck(queue.database, card, 20.0).current()
    assert compatibility.tokens_per_second == pytest.approx(180.0)


def test_a_shared_query_counts_once_in_the_waiting_work(queue: Queue) -> None:
    queue.worker.gate.clear()
    card = queue.api.app.state.service.reading.card
    query = [65] * 400
    for _ in range(3):
        queue.api.submit(query=query, items=[[66, 67]], label_token_ids=[70])
    queue.api.submit(query=[66] * 300, items=[[66, 67]], label_token_ids=[70], priority="interactive")
    waiting = count_waiting(queue.database, card, 100, interactive_only=False)
    own = sum(2 * (1 + length / 3_840) for length in (400, 400, 400, 300))
    assert waiting.chunks == 4
    assert waiting.tokens == pytest.approx(work_of_prefix(400) + work_of_prefix(300) + own, abs=4)
    assert count_waiting(queue.database, card, 100, interactive_only=True).chunks == 1
    assert count_waiting(queue.database, card, 3, interactive_only=False).chunks == 3
