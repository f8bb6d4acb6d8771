"""Read the bodies of requests, so that no body holds up other requests, and only as long as its client is there.

Python's JSON parser holds the interpreter's lock from the first byte of a body to the last. A short body is read in a
thread. A body for which that would take too long is read in another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from starlette.requests import ClientDisconnect, Request

from api.reading import ReadingContext
from api.text_process.process import TextProcess
from api.text_process.turns import Turns
from api.threads import TEXT_THREADS, Threads
from api.waiting import client_left

SHORT_BYTES = 2**17
"""A body of at most this size is read in a thread, whatever it holds: the lock is held for 15 ms at most."""

LONG_BYTES = 2**20
LONG_VALUES = 2**16
"""A body with more bytes, or more values, is read in another process. Up to both, the lock is held for 40 ms."""

THREADS_EACH = TEXT_THREADS // 2
"""The threads that read bodies of one tenant at a time. The others stay free for other tenants."""

WATCH_SECONDS = 0.05
"""Work that takes longer is ended when its client leaves. Watching for that would cost more than shorter work."""

StopIfUnwanted = Callable[[], None]
"""A function that work calls between its steps, and that raises an exception when nobody wants the result."""

P = ParamSpec("P")
StepArguments = ParamSpec("StepArguments")
T = TypeVar("T")


class _Wish:
    """Whether somebody still wants the result of a thread's work."""

    def __init__(self) -> None:
        self._given_up = False

    def give_up(self) -> None:
        self._given_up = True

    def check(self) -> None:
        """Raise ClientDisconnect if nobody wants the result. Work in a thread can only be ended by an exception."""
        if self._given_up:
            raise ClientDisconnect


class BodyReader:
    """Reads bodies in the threads of a process, and in a process of their own."""

    def __init__(self, reading: ReadingContext, threads: Threads, process: TextProcess) -> None:
        self._reading = reading
        self._threads = threads
        self._process = process
        self._turns = Turns(TEXT_THREADS, THREADS_EACH)

    async def read(
        self,
        request: Request,
        tenant: str,
        function: Callable[Concatenate[ReadingContext, bytes, StopIfUnwanted, P], T],
        body: bytes,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return ``function(reading, body, stop_if_unwanted, *args)``, a function at the top level of its module.

        tenant: whose turn a long body takes. Raises ClientDisconnect if the client leaves, and RequestError.
        """
        if _is_long(body):
            # Killing the process ends the work, so it need not ask.
            work = asyncio.ensure_future(self._process.read(tenant, function, body, *args, **kwargs))
            with _watched(request, work.cancel):
                return await work
        wish = _Wish()
        try:
            with _watched(request, wish.give_up):
                async with self._turns.turn(tenant):
                    wish.check()
                    return await self._threads.text(function, self._reading, body, wish.check, *args, **kwargs)
        finally:
            wish.give_up()

    async def step(
        self,
        tenant: str,
        function: Callable[StepArguments, T],
        *args: StepArguments.args,
        **kwargs: StepArguments.kwargs,
    ) -> T:
        """Run a function that reads a part of a body in a thread, when it is the tenant's turn."""
        async with self._turns.turn(tenant):
            return await self._threads.text(function, *args, **kwargs)


def _is_long(body: bytes) -> bool:
    """Return whether parsing a body takes long. Its values are not counted exactly: texts have commas, too."""
    if len(body) <= SHORT_BYTES:
        return False
    return len(body) > LONG_BYTES or sum(map(body.count, (b",", b"[", b"{"))) > LONG_VALUES


@contextmanager
def _watched(request: Request, on_left: Callable[[], object]) -> Iterator[None]:
    """Call ``on_left`` if the client leaves during the block; the block may then raise ClientDisconnect."""
    watching: asyncio.Task[None] | None = None

    async def watch() -> None:
        await client_left(request)
        on_left()

    def begin() -> None:
        nonlocal watching
        watching = asyncio.ensure_future(watch())

    timer = asyncio.get_running_loop().call_later(WATCH_SECONDS, begin)
    try:
        yield
    except asyncio.CancelledError:
        if watching is None or not watching.done():
            raise  # by the shutdown of the process, not by the watch
        raise ClientDisconnect from None
    finally:
        timer.cancel()
        if watching is not None:
            watching.cancel()
