"""The class SharedReads: who asks at the same time shares a query."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing

import pytest

from api.waiting import shared_reads
from api.waiting.shared_reads import SharedReads
from jobs.queue.read import results_of
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import JobResult
from scoring.error_codes import ErrorCode, RequestError
from settings.store import StoreSettings
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
        reads = SharedReads(reading)
        reading.held.clear()
        together = [asyncio.create_task(reads.result("default", job_id, 2)) for job_id in (first, first, second)]
        while not reading.asked:
            await asyncio.sleep(0)
        meanwhile = [asyncio.create_task(reads.result("default", job_id, 2)) for job_id in (second, first)]
        await asyncio.sleep(0)
        reading.held.set()
        found = await asyncio.gather(*together, *meanwhile)
        assert [job.id for job, _ in found] == [first, first, second, second, first]
        return reading.asked

    assert asyncio.run(read()) == [[first, second], [second, first]]


def test_an_outage_fails_those_who_asked_and_nobody_after_them(store: Database) -> None:
    job_id = submit(store)

    async def read() -> None:
        reading = Reading(store)
        reads = SharedReads(reading)
        reading.failure = StorageUnavailable("away")
        failed = await asyncio.gather(*(reads.result("default", job_id, 2) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in failed] == [StorageUnavailable] * 3
        reading.failure = None
        assert (await reads.result("default", job_id, 2))[0].id == job_id

    asyncio.run(read())


def test_a_cancelled_request_takes_nothing_from_the_others(store: Database) -> None:
    job_id = submit(store)

    async def read() -> None:
        reading = Reading(store)
        reads = SharedReads(reading)
        reading.held.clear()
        leaving, staying = (asyncio.create_task(reads.result("default", job_id, 2)) for _ in range(2))
        while not reading.asked:
            await asyncio.sleep(0)
        leaving.cancel()
        reading.held.set()
        assert (await staying)[0].id == job_id

    asyncio.run(read())


def test_the_memory_of_a_query_is_bounded(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reads, "MAX_VALUES", 10)
    job_ids = [submit(store) for _ in range(4)]

    async def read() -> list[list[str]]:
        reading = Reading(store)
        reads = SharedReads(reading)
        values = (4, 6, 11, 1)
        asking = (reads.result("default", job_id, size) for job_id, size in zip(job_ids, values, strict=True))
        await asyncio.gather(*asking)
        return reading.asked

    assert asyncio.run(read()) == [job_ids[:2], job_ids[2:3], job_ids[3:]]


def test_a_job_that_is_missing_or_of_another_tenant_is_not_found(store: Database) -> None:
    job_id = submit(store, tenant="acme")

    async def read(tenant: str, asked: str) -> None:
        with pytest.raises(RequestError) as error:
            await SharedReads(Reading(store)).result(tenant, asked, 2)
        assert error.value.code is ErrorCode.JOB_NOT_FOUND

    asyncio.run(read("default", job_id))
    asyncio.run(read("acme", "job_0"))
