"""Waiters by themselves: what a wait ends with, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from api.waiting import REMEMBERED_ENDS, Outcome, Waiters
from jobs.store.database import StorageUnavailable
from jobs.store.records import JobStatus

LONG = 30.0


def test_a_job_that_ended_before_the_wait_is_not_waited_for() -> None:
    async def wait() -> Outcome:
        waiters = Waiters()
        waiters.on_ended("a")
        return await waiters.wait("a", LONG)

    assert asyncio.run(wait()) is Outcome.ENDED


def test_everybody_who_waits_for_a_job_is_woken_and_nobody_else() -> None:
    async def wait() -> tuple[list[Outcome], Outcome]:
        waiters = Waiters()
        same = [asyncio.create_task(waiters.wait("a", LONG)) for _ in range(3)]
        other = asyncio.create_task(waiters.wait("b", 0.2))
        await asyncio.sleep(0)
        waiters.on_ended("a")
        outcomes = await asyncio.gather(*same), await other
        assert waiters.job_ids == []
        return outcomes

    assert asyncio.run(wait()) == ([Outcome.ENDED] * 3, Outcome.TIMED_OUT)


def test_a_wait_ends_when_its_client_leaves_or_the_process_stops() -> None:
    async def leave() -> None:
        return

    async def stay() -> None:
        await asyncio.sleep(LONG)

    async def wait() -> tuple[Outcome, Outcome]:
        waiters = Waiters()
        left = await waiters.wait("a", LONG, leave)
        stopped = asyncio.create_task(waiters.wait("a", LONG, stay))
        await asyncio.sleep(0)
        waiters.stop()
        return left, await stopped

    assert asyncio.run(wait()) == (Outcome.DISCONNECTED, Outcome.TIMED_OUT)


def test_lookups_go_on_after_an_outage_and_find_ended_and_vanished_jobs_in_one_query() -> None:
    asked: list[list[str]] = []

    async def statuses(job_ids: Collection[str]) -> Mapping[str, JobStatus]:
        asked.append(sorted(job_ids))
        if len(asked) == 1:
            raise StorageUnavailable("away")
        return {"ended": JobStatus.FAILED, "running": JobStatus.RUNNING}

    async def wait() -> list[Outcome]:
        waiters = Waiters()
        polling = asyncio.create_task(waiters.poll(statuses, 0.01))
        outcomes = await asyncio.gather(
            waiters.wait("ended", LONG), waiters.wait("vanished", LONG), waiters.wait("running", 0.3)
        )
        polling.cancel()
        return outcomes

    assert asyncio.run(wait()) == [Outcome.ENDED, Outcome.ENDED, Outcome.TIMED_OUT]
    assert asked[:2] == [["ended", "running", "vanished"]] * 2


def test_nothing_is_looked_up_while_nobody_waits() -> None:
    async def statuses(_: Collection[str]) -> Mapping[str, JobStatus]:
        raise AssertionError("looked up")

    async def idle() -> None:
        polling = asyncio.create_task(Waiters().poll(statuses, 0.001))
        await asyncio.wait([polling], timeout=0.1)
        assert not polling.done()
        polling.cancel()

    asyncio.run(idle())


def test_remembered_ends_are_bounded() -> None:
    async def remember() -> tuple[Outcome, Outcome]:
        waiters = Waiters()
        for n in range(REMEMBERED_ENDS + 1):
            waiters.on_ended(str(n))
        return await waiters.wait("0", 0.01), await waiters.wait(str(REMEMBERED_ENDS), 0.01)

    assert asyncio.run(remember()) == (Outcome.TIMED_OUT, Outcome.ENDED)
