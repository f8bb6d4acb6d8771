"""Read the bodies of requests, so that no body holds up other requests, and only as long as its client is there.

Python's JSON parser holds the interpreter's lock from the first byte of a body to the last. A short body is read in a
thread. A body for which that would take too long is read in another process. Most bodies are so small that a thread
would cost more than reading them, and wait for the interpreter's lock: these are read on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from starlette.requests import ClientDisconnect, Request

from api.models.loading import ModelLoader
from api.reading import ManyPairsError, ReadingContext, TakesLongError
from api.text_process.process import TextProcess
from api.threads import Threads
from api.waiting.departure import departure_of

SMALL_BYTES = 2**12
"""A body of at most this size is read on the event loop, if that takes no longer than :data:`SMALL_SECONDS`."""

SMALL_SECONDS = 0.002
"""A small body may stand for much work, such as a query that is encoded with each of many items. When reading one has
taken this long on the event loop, it is read in a thread, from its beginning."""

SMALL_PAIRS = 2**12
"""A small body whose items and labels of several tokens make more pairs than this is read in a thread."""

SHORT_PAIRS = 2**15
"""A body with more pairs than this is read in another process. It takes tens of milliseconds, in which a thread would
take the interpreter's lock from all other requests again and again."""

CAREFUL_SECONDS = 1.0
"""After a small body took long, all bodies are read in threads for this long. So nobody can send many such bodies to
hold up the event loop."""

SHORT_BYTES = 2**17
"""A body of at most this size is read in a thread, whatever it holds: the lock is held for 15 ms at most."""

LONG_BYTES = 2**20
LONG_VALUES = 2**16
"""A body with more bytes, or more values, is read in another process. Up to both, the lock is held for 40 ms."""

P = ParamSpec("P")
T = TypeVar("T")


class _Caller:
    """Whoever wants the result of a thread's work, and may give it up."""

    def __init__(self) -> None:
        self._given_up = False

    def give_up(self) -> None:
        self._given_up = True

    def check(self) -> None:
        """Raise ClientDisconnect if nobody wants the result. Work in a thread can only be ended by an exception."""
        if self._given_up:
            raise ClientDisconnect


class BodyReader:
    """Reads bodies on the event loop, in the threads of a process, and in a process of their own."""

    def __init__(self, reading: ReadingContext, threads: Threads, process: TextProcess, loader: ModelLoader) -> None:
        self.loader = loader
        # The event loop must not wait for the tokenizer's own threads, which may have a long text of another client.
        self._reading_on_loop = reading.on_loop(SMALL_PAIRS)
        self._reading_in_thread = replace(reading, most_pairs=SHORT_PAIRS)
        self._threads = threads
        self.process = process
        self._careful_until = 0.0  # on the clock of time.monotonic; before that, no body is read on the event loop

    async def read(
        self,
        request: Request,
        tenant: str,
        function: Callable[Concatenate[ReadingContext, bytes, P], T],
        body: bytes,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return ``function(reading, body, *args)``, a function at the top level of its module.

        tenant: whose turn a long body takes. Raises ClientDisconnect if the client leaves, and RequestError.
        """
        return await self.loader.reading(lambda: self._read(request, tenant, function, body, args, kwargs))

    async def _read(
        self, request: Request, tenant: str, function: Callable[..., T], body: bytes, args: tuple[Any, ...], kwargs: Any
    ) -> T:
        """Return what the function returns, wherever it is called. Raises NotLoadedError, too."""
        if len(body) <= SMALL_BYTES and time.monotonic() >= self._careful_until:
            try:
                reading = replace(self._reading_on_loop, stop_if_unwanted=_time_limit(SMALL_SECONDS))
                return function(reading, body, *args, **kwargs)
            except ManyPairsError:
                pass  # It was known before anything took long.
            except TakesLongError:
                self._careful_until = time.monotonic() + CAREFUL_SECONDS
        if not _is_long(body):
            with suppress(ManyPairsError):
                return await self._in_thread(request, tenant, lambda reading: function(reading, body, *args, **kwargs))
        # Killing the process ends the work, so it need not ask.
        work = asyncio.ensure_future(self.process.read(tenant, function, body, *args, **kwargs))
        with _watched(request, work.cancel):
            return await work

    async def _in_thread(self, request: Request, tenant: str, read: Callable[[ReadingContext], T]) -> T:
        """Return what ``read`` returns, in a thread and in the tenant's turn."""
        caller = _Caller()
        try:
            with _watched(request, caller.give_up):
                async with self._threads.text_turn(tenant):
                    caller.check()
                    return await self._threads.text(
                        read, replace(self._reading_in_thread, stop_if_unwanted=caller.check)
                    )
        finally:
            caller.give_up()


def _time_limit(seconds: float) -> Callable[[], None]:
    """Return a function that raises TakesLongError once this thread has computed for so many seconds."""
    last_moment = time.thread_time() + seconds

    def check() -> None:
        if time.thread_time() > last_moment:
            raise TakesLongError

    return check


def _is_long(body: bytes) -> bool:
    """Return whether parsing a body takes long. Its values are not counted exactly: texts have commas, too."""
    if len(body) <= SHORT_BYTES:
        return False
    return len(body) > LONG_BYTES or sum(map(body.count, (b",", b"[", b"{"))) > LONG_VALUES


@contextmanager
def _watched(request: Request, on_left: Callable[[], object]) -> Iterator[None]:
    """Call ``on_left`` if the client leaves during the block; the block may then raise ClientDisconnect."""
    departure = departure_of(request)
    departure.watch(on_left)
    try:
        yield
    except asyncio.CancelledError:
        if not departure.has_happened:
            raise  # by the shutdown of the process, not by the departure
        raise ClientDisconnect from None
    finally:
        departure.unwatch()
