"""The class Waiters: what ends a wait, and with which outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from api.waiting.departure import Departure
from api.waiting.ended_jobs import MAX_ENDED_JOBS, EndedJobs
from api.waiting.waiters import MAX_EARLY_RESULTS, Waited, Waiters, WaitOutcome
from jobs.store.database import StorageUnavailable
from jobs.store.records import JobStatus

LONG = 30.0
ENDED = Waited(WaitOutcome.ENDED)
TIMED_OUT = Waited(WaitOutcome.TIMED_OUT)
DISCONNECTED = Waited(WaitOutcome.DISCONNECTED)
STOPPED = Waited(WaitOutcome.STOPPED)


def do_nothing() -> None:
    pass


def test_a_wait_for_an_ended_job_returns_at_once() -> None:
    async def wait() -> Waited:
        waiters = Waiters(EndedJobs())
        waiters.on_ended("a")
        return await waiters.wait("a", LONG)

    assert asyncio.run(wait()) == ENDED


def test_the_end_of_a_job_wakes_all_of_its_waits_and_no_others() -> None:
    async def wait() -> tuple[list[Waited], Waited]:
        waiters = Waiters(EndedJobs())
        same = [asyncio.create_task(waiters.wait("a", LONG)) for _ in range(3)]
        other = asyncio.create_task(waiters.wait("b", 0.2))
        await asyncio.sleep(0)
        waiters.on_ended("a")
        outcomes = list(await asyncio.gather(*same)), await other
        assert waiters.job_ids == []
        return outcomes

    assert asyncio.run(wait()) == ([ENDED] * 3, TIMED_OUT)


def test_a_result_reaches_all_who_wait_and_nobody_who_comes_later() -> None:
    async def wait() -> tuple[list[Waited], Waited]:
        waiters = Waiters(EndedJobs())
        waiting = [asyncio.create_task(waiters.wait("a", LONG)) for _ in range(2)]
        await asyncio.sleep(0)
        waiters.on_ended("a", "result")
        waiters.on_ended("a", "another result")
        waiters.on_ended("a")
        return list(await asyncio.gather(*waiting)), await waiters.wait("a", LONG)

    assert asyncio.run(wait()) == ([Waited(WaitOutcome.ENDED, "result")] * 2, ENDED)


def test_a_result_that_comes_before_its_request_waits_is_kept_for_it_alone() -> None:
    async def wait() -> tuple[Waited, Waited]:
        waiters = Waiters(EndedJobs())
        waiters.on_ended("a", "result")
        return await waiters.wait("a", LONG), await waiters.wait("a", LONG)

    assert asyncio.run(wait()) == (Waited(WaitOutcome.ENDED, "result"), ENDED)


def test_few_results_that_nobody_waits_for_are_kept() -> None:
    async def wait() -> list[Waited]:
        waiters = Waiters(EndedJobs())
        for n in range(MAX_EARLY_RESULTS + 1):
            waiters.on_ended(str(n), "result")
        waiters.keep_waiting_for("2")
        waiters.on_ended("2")
        return [await waiters.wait(job_id, LONG) for job_id in ("0", "1", "2")]

    assert asyncio.run(wait()) == [ENDED, Waited(WaitOutcome.ENDED, "result"), ENDED]


def test_a_job_that_has_not_ended_after_all_is_waited_for_again() -> None:
    async def wait() -> Waited:
        waiters = Waiters(EndedJobs())
        waiters.on_ended("a")
        waiters.keep_waiting_for("a")
        return await waiters.wait("a", 0.01)

    assert asyncio.run(wait()) == TIMED_OUT


def test_a_wait_ends_when_its_client_departs() -> None:
    async def wait() -> list[Waited]:
        waiters, departures = Waiters(EndedJobs()), [Departure(lambda _: None) for _ in range(2)]
        departures[0].happen()
        before = await waiters.wait("a", LONG, departures[0])
        waiting = asyncio.create_task(waiters.wait("a", LONG, departures[1]))
        await asyncio.sleep(0)
        departures[1].happen()
        return [before, await waiting]

    assert asyncio.run(wait()) == [DISCONNECTED] * 2


def test_when_the_process_stops_only_those_wait_on_who_need_the_end_and_not_for_ever() -> None:
    async def wait() -> tuple[list[Waited], list[Waited], list[Waited]]:
        waiters = Waiters(EndedJobs())
        look, call, other = (
            asyncio.create_task(waiters.wait(job_id, LONG, needs_end=needs_end))
            for job_id, needs_end in (("a", False), ("a", True), ("b", True))
        )
        await asyncio.sleep(0)
        waiters.stop(0.2)
        at_once = [await look, await waiters.wait("a", LONG)]
        new = asyncio.create_task(waiters.wait("a", LONG, needs_end=True))
        await asyncio.sleep(0)
        waiters.on_ended("a")
        meanwhile = [await call, await new]
        return at_once, meanwhile, [await other, await waiters.wait("b", LONG, needs_end=True)]

    assert asyncio.run(wait()) == ([STOPPED] * 2, [ENDED] * 2, [STOPPED] * 2)


def test_a_wait_has_no_task_of_its_own_and_leaves_nothing_behind() -> None:
    async def wait() -> None:
        waiters, departure = Waiters(EndedJobs()), Departure(lambda _: None)
        waiting = [asyncio.create_task(waiters.wait("a", LONG, departure)) for _ in range(10)]
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1 + len(waiting)
        for one in waiting[:5]:
            one.cancel()
        waiters.on_ended("a")
        await asyncio.gather(*waiting, return_exceptions=True)
        assert waiters.job_ids == []
        departure.happen()

    asyncio.run(wait())


def test_polling_continues_after_an_outage_and_finds_ended_and_deleted_jobs_in_one_query() -> None:
    asked: list[list[str]] = []

    async def statuses(job_ids: Collection[str]) -> Mapping[str, JobStatus]:
        asked.append(sorted(job_ids))
        if len(asked) == 1:
            raise StorageUnavailable("away")
        return {"ended": JobStatus.FAILED, "running": JobStatus.RUNNING}

    async def wait() -> list[Waited]:
        waiters = Waiters(EndedJobs())
        polling = asyncio.create_task(waiters.poll(statuses, 0.01))
        outcomes = await asyncio.gather(
            waiters.wait("ended", LONG), waiters.wait("vanished", LONG), waiters.wait("running", 0.3)
        )
        polling.cancel()
        return list(outcomes)

    assert asyncio.run(wait()) == [ENDED, ENDED, TIMED_OUT]
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
    async def remember() -> tuple[Waited, Waited]:
        waiters = Waiters(EndedJobs())
        for n in range(MAX_ENDED_JOBS + 1):
            waiters.on_ended(str(n))
        return await waiters.wait("0", 0.01), await waiters.wait(str(MAX_ENDED_JOBS), 0.01)

    assert asyncio.run(remember()) == (TIMED_OUT, ENDED)
