"""The parent of several API processes: it starts them, starts them again, and stops them.

It answers no requests. If a child ends, the others go on. A child that hangs is ended, because it would still get its
share of the connections, and answer none. The kernel ends the children if the parent is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from asyncio.subprocess import Process
from contextlib import ExitStack, suppress
from pathlib import Path

import structlog

from api.processes.listening import Addresses, PortError, reserve
from api.python_command import python_command
from api.siblings import HEARTBEAT_SECONDS, SharedTable, make_shared
from bell.local import LocalHub
from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.errors.endings import Ending

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
"""The pause before a child is started again. It doubles while children end soon after their start."""

SOON_SECONDS = 30.0

STOP_SECONDS = 15.0
"""Time that children have to stop, when they take no more requests, before they are killed: longer than they give
requests in progress.
"""

SERVING_SECONDS = 0.1
"""The pause between two looks at whether a child serves yet."""

SILENT_CHECKS = 20
"""A child is ended when so many looks, one each :data:`HEARTBEAT_SECONDS`, have found no new heartbeat of it. No
collection of garbage takes so long, and on a loaded machine the parent looks as rarely as its children take turns. So
looks are counted, not seconds: when a container that was paused for an hour goes on, nobody is ended.
"""

log = structlog.stdlib.get_logger("api")


class Parent:
    """The parent, for one :meth:`run`."""

    def __init__(self, settings: ApiSettings, bell: BellSettings) -> None:
        self._settings = settings
        self._bell = bell
        self._count = settings.process_count
        self._children: dict[int, Process] = {}  # that run, by number
        self._serving: set[int] = set()  # the numbers of those that take requests
        self._status = 0
        self._table: SharedTable
        self._stopping: asyncio.Event
        self._first_serves: asyncio.Event

    def run(self) -> int:
        """Serve until stopped, and return the exit status: that of a child if none can serve."""
        with ExitStack() as stack:
            try:
                addresses = reserve(self._settings.host, self._settings.port)
            except PortError as error:
                log.error("can't start", reason=str(error))
                return Ending.FAILED
            stack.callback(addresses.close)
            try:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scoreline-api-")))
                self._table = make_shared(folder, self._count)
            except OSError as error:
                reason = f"what the processes share can't be stored: {error.strerror or error}; TMPDIR names the folder"
                log.error("can't start", reason=reason)
                return Ending.FAILED
            return asyncio.run(self._run(addresses, folder))

    async def _run(self, addresses: Addresses, folder: Path) -> int:
        self._stopping, self._first_serves = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for stop in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(stop, self._stop, stop)
        hub = None
        if self._bell.bell_socket is not None:
            hub = asyncio.create_task(self._keep_hub(self._bell.bell_socket))
        log.info("listening", host=self._settings.host, port=addresses.port, processes=self._count)
        async with asyncio.TaskGroup() as keepers:
            # What keeps one from starting would keep all of them, and is to be said once.
            first = keepers.create_task(self._keep(0, addresses, folder))
            waiting = asyncio.create_task(self._first_serves.wait())
            await asyncio.wait((first, waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not self._stopping.is_set():
                for number in range(1, self._count):
                    keepers.create_task(self._keep(number, addresses, folder))
        if hub is not None:
            hub.cancel()
            with suppress(asyncio.CancelledError):
                await hub
        return self._status

    def _stop(self, number: signal.Signals) -> None:
        """Pass a signal on to all children, and kill those that it does not end."""
        if not self._stopping.is_set():
            self._stopping.set()
            seconds = self._settings.drain_seconds + STOP_SECONDS
            asyncio.get_running_loop().call_later(seconds, self._send, signal.SIGKILL)
        self._send(number)

    def _send(self, number: signal.Signals) -> None:
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.send_signal(number)

    async def _keep(self, number: int, addresses: Addresses, folder: Path) -> None:
        """Start a child, and start it again whenever it ends, until the parent is stopped or no child can serve."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            started_at = time.monotonic()
            try:
                status, served = await self._run_child(number, addresses, folder)
            except OSError as error:
                log.error("a process of the API can't be started", process=number, error=str(error))
                status, served = 1, False
            if self._stopping.is_set():
                return
            if not served and not self._serving:
                self._status = status if status > 0 else 1
                self._stop(signal.SIGTERM)
                return
            if time.monotonic() - started_at > SOON_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            log.error("a process of the API has ended and is started again", process=number, status=status, pause=pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                    return
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _run_child(self, number: int, addresses: Addresses, folder: Path) -> tuple[int, bool]:
        """Run a child until it ends. Returns its exit status, and whether it ever took requests."""
        sockets = addresses.sockets()
        passed = [one.fileno() for one in sockets]
        try:
            child = await asyncio.create_subprocess_exec(
                *python_command("-m", "scoreline.child", str(os.getpid()), "api.processes.child"),
                *map(str, (number, self._count, folder, *passed)),
                pass_fds=passed,
                start_new_session=True,  # Ctrl-C in a terminal is for the parent, which passes it on
            )
        finally:
            # Only the child has these sockets. So when it ends, nothing waits in them for nobody to take it.
            for one in sockets:
                one.close()
        self._children[number] = child
        log.info("a process of the API was started", process=number, pid=child.pid)
        if self._stopping.is_set():
            child.terminate()
        watching = asyncio.create_task(self._watch(number, child))
        try:
            status = await child.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            served = self._table.heartbeat(number) > 0
            del self._children[number]
            self._serving.discard(number)
            self._table.clear(number)
        return status, served

    async def _watch(self, number: int, child: Process) -> None:
        """Note that a child serves, and kill it if it falls silent then."""
        while not self._table.heartbeat(number):
            await asyncio.sleep(SERVING_SECONDS)
        self._serving.add(number)
        self._first_serves.set()
        last, silent = 0, 0
        while silent < SILENT_CHECKS:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            heartbeat = self._table.heartbeat(number)
            silent = silent + 1 if heartbeat == last else 0
            last = heartbeat
        log.error("a process of the API hangs and is ended", process=number, pid=child.pid, silent_seconds=silent)
        with suppress(ProcessLookupError):
            child.kill()

    async def _keep_hub(self, path: str) -> None:
        """Serve the local bell, to which the children and the workers connect."""
        while True:
            try:
                await LocalHub(path).listen(lambda _job_id, _result: None)
            except OSError as error:
                log.error("the local bell can't be served", error=str(error))
            await asyncio.sleep(FIRST_PAUSE_SECONDS)
