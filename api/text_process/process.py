"""The API's side of the process that reads long bodies: it starts that process, and sends it one body at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog

from api.models.catalogue import Entry
from api.models.loading import read_when_loaded
from api.models.models import NotLoadedError
from api.python_command import python_command
from api.reading import ReadingContext
from api.text_process import messages
from api.text_process.messages import OUT_OF_MEMORY, Ended, Failed, NotLoaded, Read, Refused
from api.threads import Threads
from api.turns import Turns
from scoring.error_codes import ErrorCode, RequestError

START_SECONDS = 30.0
"""The process is started that long after the API, or for the first long body. So it does not delay the API's start."""

WAIT_SECONDS = 20.0
"""How long a body waits for the process to start, which usually takes a second or two."""

TURN_SECONDS = 300.0
"""How long a body waits for its turn, while the bodies of others are read."""

TOKENIZER_THREADS = 16
"""The most threads in which the tokenizer encodes the texts of a long body: each takes some of the body's memory."""

RETRY_SECONDS = 1.0

ADVICE = "send fewer items at a time, or send them as JSON lines"

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.stdlib.get_logger("api.text_process")


class ReaderKilledError(RequestError):
    """Somebody killed the process that read a body. That may have been the kernel, because of the body's memory."""

    def __init__(self) -> None:
        message = "reading the body was interrupted; please try again"
        super().__init__(ErrorCode.OVERLOADED, message, retry_after=RETRY_SECONDS)


class TextProcess:
    """Reads one body at a time in another process, the tenants in turn. Create it in the event loop that uses it."""

    def __init__(self, reading: ReadingContext, threads: Threads) -> None:
        self._reading = reading
        # Pickled before anything is served: with a large tokenizer, that holds the interpreter's lock for long.
        self._context = pickle.dumps(reading, pickle.HIGHEST_PROTOCOL)
        self._threads = threads
        self._turns = Turns()
        self._wanted = asyncio.Event()
        self._started = asyncio.Event()
        self._control: socket.socket | None = None  # while it is started
        self._is_ready = False  # whether it has had time to start, and to load the models that it was asked for

    async def keep(self) -> None:
        """Start the process, and return when it has ended. It ends with this task."""
        with contextlib.suppress(TimeoutError):
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes when the wait has just ended.
            async with asyncio.timeout(START_SECONDS):
                await self._wanted.wait()
        control, theirs = socket.socketpair()
        with control:
            control.setblocking(False)
            with theirs:
                process = _start(theirs)
            try:
                await messages.send_async(control, [self._context])
                self._control, self._is_ready = control, False
                self._started.set()
                # The process sends nothing over this socket, so this returns when it has ended.
                with contextlib.suppress(ConnectionError):
                    await asyncio.get_running_loop().sock_recv(control, 1)
                log.error("the process that reads long bodies has ended, and is started again")
            finally:
                self._started.clear()
                self._control = None
                process.kill()
                process.wait()

    async def read(
        self,
        tenant: str,
        function: Callable[Concatenate[ReadingContext, bytes, P], T],
        body: bytes,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return ``function(reading, body, *args)``, computed by a child of the process.

        The child is killed if this is cancelled, so the function need not ask whether to stop. Raises the RequestError
        that the function raises; REQUEST_TOO_LARGE if the child takes too long or needs too much memory;
        ReaderKilledError if somebody killed it; OVERLOADED if there is no process, if it was not ready in time, or if
        the tenant's turn does not come.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await stack.enter_async_context(self._turns.turn(tenant))
            except TimeoutError:
                message = "too many long bodies wait to be read; please try again, or send the items as JSON lines"
                raise RequestError(ErrorCode.OVERLOADED, message, retry_after=RETRY_SECONDS) from None
            limits = self._reading.limits
            try:
                async with asyncio.timeout(limits.text_process_seconds):
                    result = await read_when_loaded(lambda: self._result(function, body, args, kwargs), self._load)
            except TimeoutError:
                was_ready, self._is_ready = self._is_ready, True
                if not was_ready:
                    message = "the process that reads long bodies was not ready in time; please try again"
                    raise RequestError(ErrorCode.OVERLOADED, message, retry_after=RETRY_SECONDS) from None
                message = f"reading the body took more than {limits.text_process_seconds:g} s; {ADVICE}"
                raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message, limit="text_process_seconds") from None
            except (OSError, EOFError) as error:
                log.warning("the process that reads long bodies has ended", error=repr(error))
                raise _interrupted() from None
        self._is_ready = True
        match result:
            case Read():
                value: T = result.value
                return value
            case Refused():
                raise result.error()
            case Failed(traceback):
                raise RuntimeError(f"a body could not be read\n{traceback}")
            case Ended(exit_code):
                raise self._ended(exit_code)

    async def _result(
        self, function: Callable[..., T], body: bytes, args: tuple[Any, ...], kwargs: Any
    ) -> Read | Refused | Failed | Ended:
        """Return what a child says of a body. Raises NotLoadedError if it lacks a model."""
        call = pickle.dumps((self._reading.models.catalogue, function, args, kwargs))
        result = await self._threads.text(messages.unpack, await self._exchange([call, body]))
        if isinstance(result, NotLoaded):
            raise NotLoadedError(result.entry)
        return result

    async def _load(self, entry: Entry) -> None:
        """Have the process load a model, before it forks again."""
        self._is_ready = False
        if self._control is not None:
            with contextlib.suppress(ConnectionError):
                await asyncio.get_running_loop().sock_sendall(self._control, messages.LOAD)
                await messages.send_async(self._control, [pickle.dumps(entry)])

    async def _exchange(self, parts: list[bytes]) -> list[memoryview]:
        """Send a request to a new child, and return the parts of its result. Closing the connection kills the child."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                await self._fork(theirs)
            await messages.send_async(ours, parts)
            return await messages.receive_async(ours)

    async def _fork(self, connection: socket.socket) -> None:
        """Have the process fork a child for a connection, as soon as there is a process."""
        self._wanted.set()
        while True:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._started.wait()
            except TimeoutError:
                raise _interrupted() from None
            assert self._control is not None
            try:
                socket.send_fds(self._control, [messages.FORK], [connection.fileno()])
                return
            except ConnectionError:
                self._started.clear()  # it has just ended, and is started again

    def _ended(self, exit_code: int) -> RequestError:
        # A library that gets no memory may abort or use an address that it did not get.
        if exit_code in (OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
            log.warning("a long body needed too much memory", exit_code=exit_code)
            most = self._reading.limits.text_process_bytes // 2**20
            message = f"reading the body needs more than {most} MiB of memory; {ADVICE}"
            return RequestError(ErrorCode.REQUEST_TOO_LARGE, message, limit="text_process_bytes")
        log.warning("the process that read a long body was ended", exit_code=exit_code)
        return ReaderKilledError()


def _interrupted() -> RequestError:
    message = "the process that reads long bodies has ended; please try again"
    return RequestError(ErrorCode.OVERLOADED, message, retry_after=RETRY_SECONDS)


def _start(control: socket.socket) -> subprocess.Popen[bytes]:
    threads = {
        "OPENBLAS_NUM_THREADS": "1",  # a process with several threads can't be forked safely
        "RAYON_NUM_THREADS": str(min(os.cpu_count() or 1, TOKENIZER_THREADS)),
    }
    return subprocess.Popen(
        python_command("-m", "api.reading_process"),
        env=os.environ | threads,
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
    )
