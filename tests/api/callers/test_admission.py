"""Back-pressure: refused is what could not be scored in time, never what was accepted before, and nothing when idle."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import event, text

from api.callers.admission import JITTER, RETRY_SECONDS, Admission
from api.callers.compatibility import Handshake
from api.remembering import Remembered
from jobs.queue.statistics import count_waiting
from jobs.queue.worker_registry import register
from jobs.store.database import Database
from jobs.store.records import WorkerRecord
from scoring.work import prefill_work
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}


class Queue:
    """An API, and a worker that can be stopped from claiming and be said to be slow."""

    def __init__(self, api: RunningApi, worker: StandInWorker) -> None:
        self.api = api
        self.worker = worker
        self.database: Database = api.app.state.service.database

    def fill(self, *, calls: int = 0, jobs: int = 0, waited: float = 100.0) -> None:
        """Have so much wait, for so many seconds already, at a worker that does a token in a second."""
        self.worker.gate.clear()
        for _ in range(calls):
            self.api.submit(**BODY, priority="interactive")
        for _ in range(jobs):
            self.api.submit(**BODY)
        with self.database.write() as connection:
            connection.execute(text("UPDATE chunks SET due_at = due_at - :waited"), {"waited": waited})
        self.pace(1.0)

    def pace(self, tokens_per_second: float | None) -> None:
        """Have the worker have measured this, and the API have seen it."""
        with self.database.write() as connection:
            connection.execute(text("UPDATE workers SET tokens_per_second = :rate"), {"rate": tokens_per_second})
        assert self.api.client.get("/readyz").status_code == 200

    def call(self, timeout: float = 0.5, headers: dict[str, str] | None = None, **body: Any) -> httpx2.Response:
        return self.api.client.post("/v1/score", json=BODY | {"timeout": timeout} | body, headers=headers)

    def jobs(self) -> int:
        with self.database.read() as connection:
            return int(connection.scalar(text("SELECT count(*) FROM jobs")) or 0)


@pytest.fixture
def queue(fresh: tuple[RunningApi, StandInWorker]) -> Queue:
    return Queue(*fresh)


def code(response: httpx2.Response) -> str:
    return str(response.json()["error"]["code"])


def refused(send: Callable[[], httpx2.Response]) -> httpx2.Response:
    """The answer once it is a refusal: what was counted a moment ago may let some pass."""
    answers: list[httpx2.Response] = []

    def is_refused() -> bool:
        answers.append(send())
        return answers[-1].status_code == 503

    eventually(is_refused, "it is refused")
    return answers[-1]


def test_a_call_that_would_time_out_is_refused_and_told_when_to_come_again(queue: Queue) -> None:
    queue.fill(calls=3)
    response = refused(queue.call)
    jobs = queue.jobs()
    assert code(response) == "overloaded"
    assert "/v1/jobs" in response.json()["error"]["message"]
    estimated = count_waiting(queue.database, queue.api.app.state.service.card, 100, interactive_only=True).tokens
    assert estimated - 0.5 <= int(response.headers["retry-after"]) <= (estimated - 0.5) * (1 + JITTER) + 1
    assert code(queue.call()) == "overloaded"
    assert queue.jobs() == jobs, "nothing was accepted"
    # One that has the time is taken, and times out by itself; one without work is answered; and jobs wait.
    assert queue.call(timeout=0.5, items=[]).status_code == 200
    queue.api.submit(**BODY)
    queue.pace(10_000.0)
    eventually(lambda: code(queue.call(timeout=0.05)) == "timeout", "it is accepted")
    queue.worker.gate.set()
    eventually(lambda: queue.call(timeout=20).status_code == 200, "it is scored")


def test_a_long_wait_is_not_told_in_full(queue: Queue) -> None:
    queue.fill(calls=1)
    queue.pace(0.001)
    least, most = RETRY_SECONDS
    assert least < int(refused(queue.call).headers["retry-after"]) <= most * (1 + JITTER)


def test_what_bulk_jobs_wait_for_is_no_call_refused_for(queue: Queue) -> None:
    queue.fill(jobs=20)
    assert code(queue.call(timeout=0.05)) == "timeout"


def test_a_burst_that_has_not_waited_yet_is_no_backlog(queue: Queue) -> None:
    queue.fill(calls=20, waited=0.0)
    assert code(queue.call(timeout=0.01)) == "timeout"


def test_nothing_is_refused_where_nothing_waits(queue: Queue) -> None:
    """However slow the worker says it is, and however little time there is."""
    queue.pace(0.000_001)
    for _ in range(5):
        assert queue.call(timeout=5).status_code == 200


def test_nothing_is_refused_by_workers_that_have_measured_nothing(queue: Queue) -> None:
    queue.fill(calls=3)
    queue.pace(None)
    assert code(queue.call(timeout=0.05)) == "timeout"


def test_a_call_that_was_accepted_before_is_not_refused(queue: Queue) -> None:
    keyed = {"Idempotency-Key": "key-1"}
    body = BODY | {"timeout": 5.0}
    first = queue.api.client.post("/v1/score", json=body, headers=keyed)
    assert first.status_code == 200
    queue.fill(calls=3)
    refused(lambda: queue.call(timeout=0.5))
    again = queue.api.client.post("/v1/score", json=body, headers=keyed)
    assert (again.status_code, again.json()["scores"]) == (200, first.json()["scores"])
    assert again.headers["idempotency-replayed"] == "true"
    # A new key is no way in, and a key that was used for something else is said to be.
    assert code(queue.call(headers={"Idempotency-Key": "key-2"})) == "overloaded"
    assert code(queue.call(headers=keyed, timeout=0.25)) == "idempotency_key_reused"


@pytest.fixture
def bounded(model: TinyModel, store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """One whose API was given the settings of the test."""
    with running_api(model.directory, store_url, tmp_path, **request.param) as (api, worker):
        assert worker is not None
        yield Queue(api, worker)


@pytest.mark.parametrize("bounded", [{"max_waiting_chunks": 3}, {"max_waiting_seconds": 10.0}], indirect=True)
def test_jobs_are_refused_beyond_a_bound_and_again_taken_below_it(bounded: Queue) -> None:
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
    for _ in range(2):  # the second time by a key that is free again
        assert code(bounded.api.client.post("/v1/jobs", content=lines, headers=headers)) == "overloaded"
    assert bounded.jobs() == jobs
    assert bounded.api.submit(headers=keyed, **BODY)["id"] == job_id
    bounded.api.submit(**BODY | {"items": []})
    bounded.worker.gate.set()
    bounded.pace(10_000.0)
    eventually(lambda: bounded.api.client.post("/v1/jobs", json=BODY).status_code == 202, "jobs are taken again")


def test_many_requests_share_one_count(queue: Queue) -> None:
    counted: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("WITH first"):
            counted.append(statement)

    event.listen(queue.database.engine, "before_cursor_execute", record)
    service = queue.api.app.state.service
    admission = Admission(queue.database, service.card, service.handshake, service.api)
    for _ in range(50):
        admission._check_call(timeout=1.0)
    assert 1 <= len(counted) <= 3


def test_what_workers_say_of_their_pace_adds_up(queue: Queue) -> None:
    """One that has measured nothing yet counts like the others."""
    queue.pace(30.0)
    card = queue.api.app.state.service.card
    for name, rate in (("fast", 90.0), ("new", None)):
        record = WorkerRecord(name, card, "made-up", "none", "float32", tokens_per_second=rate)
        register(queue.database, record)
    standing = Handshake(queue.database, card, 20.0).look()
    assert standing.tokens_per_second == pytest.approx(180.0)


def test_a_shared_query_waits_once_and_all_of_its_work_counts(queue: Queue) -> None:
    queue.worker.gate.clear()
    card = queue.api.app.state.service.card
    query = [65] * 400
    for _ in range(3):
        queue.api.submit(query=query, items=[[66, 67]], label_token_ids=[70])
    queue.api.submit(query=[66] * 300, items=[[66, 67]], label_token_ids=[70], priority="interactive")
    waiting = count_waiting(queue.database, card, 100, interactive_only=False)
    own = sum(2 * (1 + length / 3_840) for length in (400, 400, 400, 300))
    assert waiting.chunks == 4
    assert waiting.tokens == pytest.approx(prefill_work(400) + prefill_work(300) + own, abs=4)
    assert count_waiting(queue.database, card, 100, interactive_only=True).chunks == 1
    assert count_waiting(queue.database, card, 3, interactive_only=False).chunks == 3


class TestRemembered:
    def test_it_is_looked_up_again_when_it_is_old_the_later_the_longer_that_takes(self) -> None:
        now, looks, takes = 0.0, 0, 0.0

        def look() -> int:
            nonlocal now, looks
            looks += 1
            now += takes
            return looks

        remembered = Remembered(look, 1.0, 10.0, lambda: now)
        assert [remembered.get(), remembered.get()] == [1, 1]
        takes = 0.1
        now = 1.0
        assert remembered.get() == 2
        now += 4.9
        assert remembered.get() == 2
        takes = 60.0
        now += 0.2
        assert remembered.get() == 3
        now += 9.9
        assert remembered.get() == 3
        now += 0.2
        assert remembered.get() == 4

    def test_only_one_looks_and_the_others_have_what_was_before_unless_it_is_old(self) -> None:
        now, looks = 0.0, 0
        looking, go_on = threading.Event(), threading.Event()

        def look() -> int:
            nonlocal looks
            looks += 1
            if looks > 1:
                looking.set()
                go_on.wait(20)
            return looks

        remembered = Remembered(look, 1.0, 1.0, lambda: now)
        assert remembered.get() == 1
        now = 1.5
        answers: list[int] = []
        first = threading.Thread(target=lambda: answers.append(remembered.get()))
        first.start()
        assert looking.wait(20)
        assert remembered.get() == 1, "somebody else is looking"
        now = 2.5
        second = threading.Thread(target=lambda: answers.append(remembered.get()))
        second.start()
        go_on.set()
        first.join(20)
        second.join(20)
        assert answers == [2, 2]
        assert looks == 2

    def test_a_failure_is_not_remembered(self) -> None:
        outcomes = iter([TimeoutError(), 7])

        def look() -> int:
            outcome = next(outcomes)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        remembered = Remembered(look, 1.0, 1.0)
        with pytest.raises(TimeoutError):
            remembered.get()
        assert remembered.get() == 7
