"""The class Waiters: what ends a wait, and with which outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from api.ended_jobs import MAX_ENDED_JOBS, EndedJobs
from api.waiting import Waiters, WaitOutcome
from jobs.store.database import StorageUnavailable
from jobs.store.records import JobStatus

LONG = 30.0


def test_a_wait_for_an_ended_job_returns_at_once() -> None:
    async def wait() -> WaitOutcome:
        waiters = Waiters(EndedJobs())
        waiters.on_ended("a")
        return await waiters.wait("a", LONG)

    assert asyncio.run(wait()) is WaitOutcome.ENDED


def test_the_end_of_a_job_wakes_all_of_its_waits_and_no_others() -> None:
    async def wait() -> tuple[list[WaitOutcome], WaitOutcome]:
        waiters = Waiters(EndedJobs())
        same = [asyncio.create_task(waiters.wait("a", LONG)) for _ in range(3)]
        other = asyncio.create_task(waiters.wait("b", 0.2))
        await asyncio.sleep(0)
        waiters.on_ended("a")
        outcomes = list(await asyncio.gather(*same)), await other
        assert waiters.job_ids == []
        return outcomes

    assert asyncio.run(wait()) == ([WaitOutcome.ENDED] * 3, WaitOutcome.TIMED_OUT)


def test_a_wait_ends_when_its_client_disconnects_or_the_process_stops() -> None:
    async def leave() -> None:
        return

    async def stay() -> None:
        await asyncio.sleep(LONG)

    async def wait() -> tuple[WaitOutcome, WaitOutcome]:
        waiters = Waiters(EndedJobs())
        left = await waiters.wait("a", LONG, leave)
        stopped = asyncio.create_task(waiters.wait("a", LONG, stay))
        await asyncio.sleep(0)
        waiters.stop()
        return left, await stopped

    assert asyncio.run(wait()) == (WaitOutcome.DISCONNECTED, WaitOutcome.TIMED_OUT)


def test_polling_continues_after_an_outage_and_finds_ended_and_deleted_jobs_in_one_query() -> None:
    asked: list[list[str]] = []

    async def statuses(job_ids: Collection[str]) -> Mapping[str, JobStatus]:
        asked.append(sorted(job_ids))
        if len(asked) == 1:
            raise StorageUnavailable("away")
        return {"ended": JobStatus.FAILED, "running": JobStatus.RUNNING}

    async def wait() -> list[WaitOutcome]:
        waiters = Waiters(EndedJobs())
        polling = asyncio.create_task(waiters.poll(statuses, 0.01))
        outcomes = await asyncio.gather(
            waiters.wait("ended", LONG), waiters.wait("vanished", LONG), waiters.wait("running", 0.3)
        )
        polling.cancel()
        return list(outcomes)

    assert asyncio.run(wait()) == [WaitOutcome.ENDED, WaitOutcome.ENDED, WaitOutcome.TIMED_OUT]
    assert asked[:2] == [["ended", "running", "vanished"]] * 2


def test_polling_makes_no_query_while_no_request_waits() -> None:
    async def statuses(_: Collection[str]) -> Mapping[str, JobStatus]:
        raise AssertionError("looked up")

    async def idle() -> None:
        polling = asyncio.create_task(Waiters(EndedJobs()).poll(statuses, 0.001))
        await asyncio.wait([polling], timeout=0.1)
        assert not polling.done()
        polling.cancel()

    asyncio.run(idle())


def test_the_number_of_remembered_ended_jobs_is_bounded() -> None:
    async def remember() -> tuple[WaitOutcome, WaitOutcome]:
        waiters = Waiters(EndedJobs())
        for n in range(MAX_ENDED_JOBS + 1):
            waiters.on_ended(str(n))
        return await waiters.wait("0", 0.01), await waiters.wait(str(MAX_ENDED_JOBS), 0.01)

    assert asyncio.run(remember()) == (WaitOutcome.TIMED_OUT, WaitOutcome.ENDED)
