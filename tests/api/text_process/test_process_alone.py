"""The class TextProcess, without a server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from api.batches.reading import read_lines
from api.reading import ReadingContext
from api.reading_process import PRELOADED
from api.requests.batch import read_batch
from api.requests.calls import read_call
from api.requests.job_set import read_job_set
from api.requests.submission import read_job
from api.requests.tokenizing import tokenize_text
from api.text_process import process as module
from api.text_process.process import TextProcess
from api.threads import Threads
from scoring.error_codes import ErrorCode, RequestError
from tests.api.serving import RunningApi
from tests.api.text_process.test_process import readers
from tests.api.text_process.works import fail, give_back, work_for_ever

T = TypeVar("T")


@pytest.fixture
def reading(api: RunningApi) -> ReadingContext:
    found: ReadingContext = api.app.state.service.reading
    return found


def with_process(reading: ReadingContext, use: Callable[[TextProcess], Awaitable[T]]) -> T:
    """Return what a coroutine makes of a process, which is kept as an API keeps it."""

    async def keep(process: TextProcess) -> None:
        while True:
            await process.keep()

    async def run() -> T:
        process = TextProcess(reading, Threads())
        keeping = asyncio.create_task(keep(process))
        try:
            return await use(process)
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])

    return asyncio.run(run())


def test_tenants_take_turns_at_the_process_and_a_bug_in_a_library_is_told_with_its_traceback(
    reading: ReadingContext,
) -> None:
    async def order(process: TextProcess) -> str:
        with pytest.raises(RuntimeError, match=r"in fail\n.*\n.*a bug of a library"):
            await process.read("a", fail, b"")
        done: list[str] = []

        async def read(tenant: str) -> None:
            await process.read(tenant, give_back, b"")
            done.append(tenant)

        await asyncio.gather(*map(read, "aaaab"))
        return "".join(done)

    assert with_process(reading, order).index("b") == 2


def test_a_body_is_read_by_the_next_process_when_the_present_one_has_just_ended(reading: ReadingContext) -> None:
    earlier = readers(os.getpid())

    async def read_twice(process: TextProcess) -> list[bytes]:
        first = await process.read("a", give_back, b"first")
        (own,) = set(readers(os.getpid())) - set(earlier)
        os.kill(own, signal.SIGKILL)
        os.waitid(os.P_PID, own, os.WEXITED | os.WNOWAIT)
        # The event loop has had no time to learn of the end.
        return [first, await process.read("a", give_back, b"second")]

    assert with_process(reading, read_twice) == [b"first", b"second"]


def test_the_functions_that_read_bodies_are_imported_before_the_first_body() -> None:
    functions = (read_batch, read_call, read_job, read_job_set, read_lines, tokenize_text)
    assert {one.__module__ for one in functions} == {one.__name__ for one in PRELOADED}


def test_a_body_does_not_wait_for_ever_for_a_process_that_does_not_start(
    reading: ReadingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)

    async def read() -> None:
        await TextProcess(reading, Threads()).read("a", give_back, b"")

    with pytest.raises(RequestError) as refused:
        asyncio.run(read())
    assert refused.value.code is ErrorCode.OVERLOADED


def test_the_time_that_a_process_takes_to_start_is_not_that_of_the_body(reading: ReadingContext) -> None:
    impatient = replace(reading, limits=reading.limits.model_copy(update={"text_process_seconds": 0.01}))

    async def refusals(process: TextProcess) -> list[ErrorCode]:
        found = []
        for _ in range(2):
            with pytest.raises(RequestError) as refused:
                await process.read("a", work_for_ever, b"")
            found.append(refused.value.code)
        return found

    assert with_process(impatient, refusals) == [ErrorCode.OVERLOADED, ErrorCode.REQUEST_TOO_LARGE]


def test_a_body_does_not_wait_for_ever_for_its_turn(reading: ReadingContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 0.01)

    async def run() -> None:
        process = TextProcess(reading, Threads())
        async with process._turns.turn("b"):
            with pytest.raises(RequestError) as refused:
                await process.read("a", give_back, b"")
            assert refused.value.code is ErrorCode.OVERLOADED
        async with asyncio.timeout(10), process._turns.turn("a"):  # which nobody who was refused has kept
            pass

    asyncio.run(run())
