"""The class Acceptor: which submissions are committed together, and what each of them hears."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.event import listen
from starlette.requests import ClientDisconnect

from api.acceptance.accepting import MAX_MEMBERS, Acceptor
from api.acceptance.ringing import Ringer
from api.budget import Budget
from api.metrics import Metrics
from api.threads import Threads
from api.waiting.departure import Departure
from api.waiting.ended_jobs import EndedJobs
from bell.interfaces import Bell
from jobs.invariant_watch import Watch
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import Accepted, Idempotency, Submission
from jobs.store.tables import jobs, tenants
from jobs.tenancy.tenants import create_tenant
from scoring.error_codes import ErrorCode, RequestError
from settings.limits import LimitSettings
from settings.store import StoreSettings
from tests.jobs.work import MODEL, submission, submit
from tests.services import free_port

SECONDS = 30.0
T = TypeVar("T")


class RecordingBell:
    """Records rings."""

    def __init__(self) -> None:
        self.rings: list[str] = []
        self.has_rung = threading.Event()

    def ring(self, model: str) -> None:
        self.rings.append(model)
        self.has_rung.set()

    def announce(self, job_ids: Sequence[str]) -> None:
        pass


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Database]:
    database = Database.open(StoreSettings(database_url=request.getfixturevalue(f"{request.param}_url")))
    yield database
    database.close()


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[Database]:
    database = Database.open(StoreSettings(database_url=postgres_url))
    yield database
    database.close()


def _count_of_jobs(values: Any, many: bool) -> int:
    """Return how many jobs a statement stores: PostgreSQL gets them as JSON, SQLite as a row of values for each."""
    if many:
        return len(values)
    return len(json.loads(values["jobs"])) if "jobs" in values else 1


class Commits:
    """Counts the commits of jobs, and can hold the next one."""

    def __init__(self, engine: Engine) -> None:
        self.sizes: list[int] = []  # of the groups, when they have ended
        self.held = threading.Event()
        self._gate = threading.Event()
        self._gate.set()
        listen(engine, "before_cursor_execute", self._before)

    def _before(self, _connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, many: bool) -> None:
        if "INSERT INTO jobs" in statement:
            self.sizes.append(_count_of_jobs(values, many))
            if not self._gate.is_set():
                self.held.set()
                assert self._gate.wait(SECONDS)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the transactions that store jobs until the block ends."""
        self._gate.clear()
        try:
            yield
        finally:
            self._gate.set()


@asynccontextmanager
async def acceptor_on(store: Database, bell: Bell | None = None) -> AsyncIterator[Acceptor]:
    metrics = Metrics(store, Watch(store), 20.0, EndedJobs(), Budget(LimitSettings()))
    with Ringer(bell or RecordingBell()) as ringer:
        acceptor = Acceptor(store, Threads(), ringer, metrics)
        yield acceptor
        await asyncio.wait_for(acceptor.close(), SECONDS)


async def until(condition: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def started(*accepting: Coroutine[Any, Any, T]) -> list[asyncio.Task[T]]:
    """Start requests, and return when each waits."""
    tasks = [asyncio.create_task(one) for one in accepting]
    await asyncio.sleep(0)
    return tasks


def shape(number: int, **given: Any) -> Submission:
    return submission(prefix=(number,), **given)


def stored(store: Database) -> int:
    with store.read() as tx:
        return int(tx.scalar(select(func.count()).select_from(jobs)) or 0)


def test_what_comes_while_a_group_is_committed_is_committed_together_with_the_next_one(store: Database) -> None:
    commits = Commits(store.engine)

    async def run() -> list[Accepted]:
        async with acceptor_on(store) as acceptor:
            with commits.hold():
                first = await started(acceptor.accept(shape(0)))
                await until(commits.held.is_set)
                others = await started(*(acceptor.accept(shape(number)) for number in range(1, 11)))
            return await asyncio.gather(*first, *others)

    accepted = asyncio.run(run())
    assert commits.sizes == [1, 10]
    assert len({one.job_id for one in accepted}) == stored(store) == 11


def test_a_group_is_announced_once_and_each_of_its_jobs_is_counted(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[list[str], str]:
        metrics = Metrics(store, Watch(store), 20.0, EndedJobs(), Budget(LimitSettings()))
        ringer = Ringer(RecordingBell())
        rings: list[str] = []
        monkeypatch.setattr(ringer, "ring", rings.append)  # it would merge rings that follow each other
        acceptor = Acceptor(store, Threads(), ringer, metrics)
        shapes = [shape(number) for number in range(5)] + [shape(0, idempotency=Idempotency("key", "hash"))] * 2
        await asyncio.gather(*(acceptor.accept(one) for one in shapes))
        return rings, metrics.text().decode()

    rings, text = asyncio.run(run())
    assert rings == [MODEL, MODEL], "the second with the same key comes later"
    assert 'scoreline_jobs_accepted_total{origin="job",priority="normal"} 6.0' in text
    assert "scoreline_accepted_together_sum 7.0" in text
    assert "scoreline_accepted_together_count 1.0" in text


def test_a_group_has_a_bounded_number_of_members(store: Database) -> None:
    commits = Commits(store.engine)

    async def run() -> None:
        async with acceptor_on(store) as acceptor:
            await asyncio.gather(*(acceptor.accept(shape(number)) for number in range(MAX_MEMBERS + 5)))

    asyncio.run(run())
    assert commits.sizes == [MAX_MEMBERS, 5]


def test_the_bell_is_rung_after_the_commit_even_if_the_event_loop_is_busy(store: Database) -> None:
    commits = Commits(store.engine)
    bell = RecordingBell()

    async def run() -> None:
        async with acceptor_on(store, bell) as acceptor:
            with commits.hold():
                tasks = await started(acceptor.accept(shape(0)))
                await until(commits.held.is_set)
                assert bell.rings == []
            # While this waits, the event loop makes no turn.
            assert bell.has_rung.wait(SECONDS)
            assert stored(store) == 1
            await asyncio.gather(*tasks)

    asyncio.run(run())
    assert bell.rings == [MODEL]


def test_a_group_has_a_bounded_number_of_bytes(store: Database) -> None:
    commits = Commits(store.engine)
    middling = [shape(number, rows=10, row_tokens=1_500) for number in range(10)]

    async def run() -> None:
        async with acceptor_on(store) as acceptor:
            await asyncio.gather(*(acceptor.accept(one) for one in middling))

    asyncio.run(run())
    assert commits.sizes == [8, 2]


def test_a_large_submission_is_committed_by_itself_and_waits_for_nobody(postgres_store: Database) -> None:
    submit(postgres_store)  # so that neither of the two waits for the other to store their flow
    commits = Commits(postgres_store.engine)

    async def run() -> None:
        async with acceptor_on(postgres_store) as acceptor:
            large = shape(0, chunks=100)
            with commits.hold():
                tasks = await started(acceptor.accept(large))
                await until(commits.held.is_set)
                tasks += await started(acceptor.accept(shape(1)))
                await until(lambda: len(commits.sizes) == 2)
            await asyncio.gather(*tasks)

    asyncio.run(run())
    assert commits.sizes == [1, 1]


def test_a_request_that_is_cancelled_before_its_turn_leaves_no_job(store: Database) -> None:
    commits = Commits(store.engine)

    async def run() -> None:
        async with acceptor_on(store) as acceptor:
            with commits.hold():
                first = await started(acceptor.accept(shape(0)))
                await until(commits.held.is_set)
                kept, gone = await started(acceptor.accept(shape(1)), acceptor.accept(shape(2)))
                gone.cancel()
                await asyncio.wait([gone])
            await asyncio.gather(*first, kept)

    asyncio.run(run())
    assert stored(store) == 2


def test_a_call_whose_client_goes_before_its_turn_leaves_no_job(store: Database) -> None:
    commits = Commits(store.engine)

    async def run() -> list[Any]:
        async with acceptor_on(store) as acceptor:
            departures = [Departure(lambda _: None) for _ in range(4)]
            departures[3].happen()
            with commits.hold():
                tasks = await started(acceptor.accept(shape(0), departures[0]))
                await until(commits.held.is_set)
                tasks += await started(*(acceptor.accept(shape(n), departures[n]) for n in range(1, 4)))
                departures[0].happen()  # too late: its job is being committed
                departures[2].happen()
                await asyncio.wait(tasks[2:])
            return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(run())] == [Accepted, Accepted, ClientDisconnect, ClientDisconnect]
    assert stored(store) == 2


def test_a_submission_that_fails_fails_alone(store: Database) -> None:
    async def run() -> list[Any]:
        async with acceptor_on(store) as acceptor:
            shapes = [shape(0), shape(1, model=None), shape(2)]
            return await asyncio.gather(*(acceptor.accept(one) for one in shapes), return_exceptions=True)

    outcomes = asyncio.run(run())
    assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True, False, True]
    assert stored(store) == 2


def test_a_submission_that_waits_for_its_quota_delays_the_others_by_no_commit(postgres_store: Database) -> None:
    create_tenant(postgres_store, "acme", max_waiting_tokens=9)
    submit(postgres_store, tenant="acme", quota=9)
    commits = Commits(postgres_store.engine)

    async def run() -> RequestError:
        async with acceptor_on(postgres_store) as acceptor:
            with postgres_store.write() as tx:
                tx.execute(select(tenants.c.name).where(tenants.c.name == "acme").with_for_update(key_share=True))
                slow, *others = await started(
                    acceptor.accept(shape(0, tenant="acme", quota=9)), *(acceptor.accept(shape(n)) for n in range(1, 4))
                )
                await asyncio.wait_for(asyncio.gather(*others), SECONDS)
                assert commits.sizes == [3]
                assert not slow.done()
                assert await asyncio.wait_for(acceptor.accept(shape(5)), SECONDS)
            with pytest.raises(RequestError) as refused:
                await slow
            return refused.value

    assert asyncio.run(run()).code is ErrorCode.QUOTA_EXCEEDED


def test_an_outage_is_told_to_all_members_of_a_group() -> None:
    nowhere = f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/nothing"
    database = Database.open(StoreSettings(database_url=nowhere))

    async def run() -> list[Any]:
        async with acceptor_on(database) as acceptor:
            accepting = (acceptor.accept(shape(number)) for number in range(3))
            return await asyncio.gather(*accepting, return_exceptions=True)

    outcomes = asyncio.run(run())
    assert len(set(map(id, outcomes))) == 3
    assert all(isinstance(outcome, StorageUnavailable) for outcome in outcomes)
    database.close()


def test_when_the_process_stops_what_is_committed_is_answered_and_what_waits_is_refused(store: Database) -> None:
    commits = Commits(store.engine)

    async def run() -> list[Any]:
        async with acceptor_on(store) as acceptor:
            with commits.hold():
                tasks = await started(acceptor.accept(shape(0)))
                await until(commits.held.is_set)
                tasks += await started(acceptor.accept(shape(1)), acceptor.accept(shape(2)))
                closing = asyncio.create_task(acceptor.close())
                await asyncio.wait(tasks[1:])
                tasks += await started(acceptor.accept(shape(3)))
            await asyncio.wait_for(closing, SECONDS)
            return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(run())
    assert isinstance(first, Accepted)
    assert [type(other) for other in others] == [StorageUnavailable] * 3
    assert stored(store) == 1
