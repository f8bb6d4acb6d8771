"""The class BodyReader, without a server: who stops work that nobody wants, and how that ends."""

from __future__ import annotations

import asyncio
import threading

import pytest
from starlette.requests import ClientDisconnect, Request

from api.models.catalogue import Found
from api.models.loading import ModelLoader
from api.reading import ReadingContext
from api.text_process.body_reader import LONG_BYTES, SMALL_BYTES, BodyReader
from api.text_process.process import TextProcess
from api.threads import THREADS_EACH, Threads
from api.waiting.departure import Departure
from tests.api.serving import RunningApi, eventually
from tests.api.text_process.works import work_for_ever

LONG_BODY = b" " * (LONG_BYTES + 1)
SHORT_BODY = b" " * (SMALL_BYTES + 1)  # the shortest that a thread reads


class Client:
    """A client that has sent its body, and may leave."""

    def __init__(self) -> None:
        self._departure = Departure(lambda _: None)
        self.request = Request({"type": "http", "state": {"departure": self._departure}})

    def leave(self) -> None:
        """Go, as its connection reports it."""
        self._departure.happen()


@pytest.fixture
def reading(api: RunningApi) -> ReadingContext:
    found: ReadingContext = api.app.state.service.reading
    return found


def reader_of(reading: ReadingContext) -> BodyReader:
    threads = Threads()
    loader = ModelLoader(reading.models, None, reading.scoring, Found)
    return BodyReader(reading, threads, TextProcess(reading, threads), loader)


@pytest.mark.parametrize("leaves", [True, False], ids=["its client leaves", "the process shuts down"])
def test_work_on_a_long_body_ends(reading: ReadingContext, leaves: bool) -> None:
    async def read() -> object:
        client = Client()
        work = asyncio.create_task(reader_of(reading).read(client.request, "a", work_for_ever, LONG_BODY))
        if leaves:
            client.leave()
        else:
            await asyncio.sleep(0)  # the work has begun
            work.cancel()
        (outcome,) = await asyncio.gather(work, return_exceptions=True)
        return type(outcome)

    assert asyncio.run(read()) is (ClientDisconnect if leaves else asyncio.CancelledError)


def test_a_thread_stops_when_its_request_is_cancelled(reading: ReadingContext) -> None:
    began, stopped = threading.Event(), threading.Event()

    def work(reading: ReadingContext, _: bytes) -> None:
        began.set()
        try:
            while not stopped.wait(0.001):
                reading.stop_if_unwanted()
        finally:
            stopped.set()

    async def cancel() -> None:
        task = asyncio.create_task(reader_of(reading).read(Client().request, "a", work, SHORT_BODY))
        await asyncio.to_thread(eventually, began.is_set, "a thread works")
        task.cancel()
        try:
            await asyncio.to_thread(eventually, stopped.is_set, "the thread has stopped")
        finally:
            stopped.set()

    asyncio.run(cancel())


def test_no_thread_begins_with_the_body_of_a_client_that_left_while_it_waited(reading: ReadingContext) -> None:
    go_on, begun = threading.Event(), list[bytes]()

    def work(_: ReadingContext, body: bytes) -> None:
        begun.append(body)
        go_on.wait(20)

    async def leave() -> BaseException | None:
        reader, client = reader_of(reading), Client()
        others = [
            asyncio.create_task(reader.read(Client().request, "a", work, b"other" + SHORT_BODY))
            for _ in range(THREADS_EACH)
        ]
        waiting = asyncio.create_task(reader.read(client.request, "a", work, b"unwanted" + SHORT_BODY))
        try:
            await asyncio.to_thread(eventually, lambda: len(begun) == THREADS_EACH, "all threads of the tenant work")
            client.leave()
        finally:
            go_on.set()
        outcome, *_ = await asyncio.gather(waiting, *others, return_exceptions=True)
        return outcome

    assert isinstance(asyncio.run(leave()), ClientDisconnect)
    assert set(begun) == {b"other" + SHORT_BODY}
