"""The rounds in which questions are answered: who asks meanwhile shares the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing

import pytest

from api.budget import Budget
from api.drift import ScoreCounts
from api.metrics import Metrics
from api.results import Results
from api.rounds import Rounds, SharedCall
from api.store import Store
from api.threads import Threads
from api.waiting.ended_jobs import EndedJobs
from jobs.invariant_watch import Watch
from jobs.queue.read import results_of
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import JobResult
from scoring.error_codes import ErrorCode, RequestError
from settings.limits import LimitSettings
from settings.store import StoreSettings
from tests.api.test_caching import Source, settled
from tests.jobs.work import submit


class Reading:
    """Reads results when it is told to, and records what it was asked for."""

    def __init__(self, database: Database) -> None:
        self.asked: list[list[str]] = []
        self.held = asyncio.Event()
        self.held.set()
        self.failure: Exception | None = None
        self._database = database

    async def __call__(self, job_ids: Collection[str]) -> Mapping[str, JobResult]:
        self.asked.append(list(job_ids))
        await self.held.wait()
        if self.failure is not None:
            raise self.failure
        return results_of(self._database, job_ids)


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Database]:
    with closing(Database.open(StoreSettings(database_url=sqlite_url))) as store:
        yield store


def test_requests_that_ask_together_share_a_query_and_those_that_ask_meanwhile_the_next(store: Database) -> None:
    first, second = submit(store), submit(store)

    async def read() -> list[list[str]]:
        reading = Reading(store)
        reads = Rounds(reading)
        reading.held.clear()
        together = [asyncio.create_task(reads.answer(job_id, 2)) for job_id in (first, first, second)]
        while not reading.asked:
            await asyncio.sleep(0)
        meanwhile = [asyncio.create_task(reads.answer(job_id, 2)) for job_id in (second, first)]
        await asyncio.sleep(0)
        reading.held.set()
        found = await asyncio.gather(*together, *meanwhile)
        assert [one and one[0].id for one in found] == [first, first, second, second, first]
        return reading.asked

    assert asyncio.run(read()) == [[first, second], [second, first]]


def test_an_outage_fails_those_who_asked_and_nobody_after_them(store: Database) -> None:
    job_id = submit(store)

    async def read() -> None:
        reading = Reading(store)
        reads = Rounds(reading)
        reading.failure = StorageUnavailable("away")
        failed = await asyncio.gather(*(reads.answer(job_id, 2) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in failed] == [StorageUnavailable] * 3
        reading.failure = None
        assert await reads.answer(job_id, 2) is not None

    asyncio.run(read())


def test_a_cancelled_request_takes_nothing_from_the_others(store: Database) -> None:
    job_id = submit(store)

    async def read() -> None:
        reading = Reading(store)
        reads = Rounds(reading)
        reading.held.clear()
        leaving, staying = (asyncio.create_task(reads.answer(job_id, 2)) for _ in range(2))
        while not reading.asked:
            await asyncio.sleep(0)
        leaving.cancel()
        reading.held.set()
        assert await staying is not None

    asyncio.run(read())


def test_the_memory_of_a_query_is_bounded(store: Database) -> None:
    job_ids = [submit(store) for _ in range(4)]

    async def read() -> list[list[str]]:
        reading = Reading(store)
        reads = Rounds(reading, 10)
        values = (4, 6, 11, 1)
        asking = (reads.answer(job_id, size) for job_id, size in zip(job_ids, values, strict=True))
        await asyncio.gather(*asking)
        return reading.asked

    assert asyncio.run(read()) == [job_ids[:2], job_ids[2:3], job_ids[3:]]


def test_a_job_that_is_missing_or_of_another_tenant_is_not_found(store: Database) -> None:
    job_id = submit(store, tenant="acme")
    metrics = Metrics(store, Watch(store), 60.0, EndedJobs(), Budget(LimitSettings()))

    async def read(tenant: str, asked: str) -> None:
        with pytest.raises(RequestError) as error:
            await Results(Store(store, Threads()), metrics, ScoreCounts(store, None)).shared(tenant, asked, 2)
        assert error.value.code is ErrorCode.JOB_NOT_FOUND

    asyncio.run(read("default", job_id))
    asyncio.run(read("acme", "job_0"))


def test_a_shared_call_is_made_once_for_all_who_ask_while_another_is_under_way() -> None:
    async def scenario() -> None:
        source = Source()
        shared = SharedCall(lambda: source.look_up("a"))
        source.gate.clear()
        first = asyncio.create_task(shared.result())
        await settled()
        later = [asyncio.create_task(shared.result()) for _ in range(3)]
        await settled()
        later[0].cancel()
        await settled()
        assert source.asked == 1
        source.gate.set()
        assert await first == "a 1"
        # None of them gets the result of the call that had begun before they asked.
        assert await asyncio.gather(*later[1:]) == ["a 2", "a 2"]
        assert await shared.result() == "a 3"

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [None, OSError("away")])
def test_what_a_shared_call_found_is_the_answer_to_all_for_as_long_as_it_is_told(error: Exception | None) -> None:
    async def scenario() -> None:
        now = 0.0
        source = Source()
        source.error = error
        shared = SharedCall(lambda: source.look_up("a"), 1.0, lambda: now)
        source.gate.clear()
        asking = [asyncio.create_task(shared.result())]
        await settled()
        asking.append(asyncio.create_task(shared.result()))  # while the call is under way
        await settled()
        source.gate.set()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        answers += await asyncio.gather(shared.result(), return_exceptions=True)
        assert (source.asked, len(set(map(str, answers)))) == (1, 1)
        now = 1.0
        await asyncio.gather(shared.result(), return_exceptions=True)
        assert source.asked == 2

    asyncio.run(scenario())


def test_a_shared_call_that_fails_is_repeated() -> None:
    async def scenario() -> None:
        source = Source()
        shared = SharedCall(lambda: source.look_up("a"))
        source.error = OSError("away")
        for answer in await asyncio.gather(shared.result(), shared.result(), return_exceptions=True):
            assert answer is source.error
        source.error = None
        assert await shared.result() == "a 2"

    asyncio.run(scenario())
