"""The bell of embedded mode: one Unix socket, served by the API process, and no Redis.

Lines of JSON in both directions: ``{"ring": MODEL}`` to the workers, ``{"ended": [JOB_ID, ...]}`` to the API. A worker
may ring, too, and the hub passes it on to all of them. ``{"welcome": true}`` tells a worker that rings reach it from
now on: it takes it as a ring, for what it may have missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from bell.interfaces import in_notices

RECONNECT_SECONDS = 0.1
_SEND_LIMIT = struct.pack("ll", 0, 500_000)
"""Half a second, as a ``struct timeval``."""

logger = logging.getLogger(__name__)


def _line(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class LocalHub:
    """The API's end: a :class:`bell.interfaces.Bell` and, once :meth:`listen` runs, a
    :class:`bell.interfaces.Notices`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: set[asyncio.StreamWriter] = set()
        self._on_ended: Callable[[str], None] | None = None

    async def listen(self, on_ended: Callable[[str], None]) -> None:
        """Serve the socket, and call ``on_ended`` with each announced job id, until cancelled."""
        self._loop, self._on_ended = asyncio.get_running_loop(), on_ended
        server = await asyncio.start_unix_server(self._serve, self._path)  # replaces what a crash left at the path
        os.chmod(self._path, 0o600)
        try:
            # Not serve_forever(): from Python 3.12 on, once cancelled, it waits for the workers to go first.
            await asyncio.get_running_loop().create_future()
        finally:
            self._loop = None
            server.close()
            for worker in self._workers:
                worker.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def ring(self, model: str) -> None:
        """Ring all connected workers."""
        self._soon(self._pass_on, _line({"ring": model}))

    def announce(self, job_ids: Sequence[str]) -> None:
        """Say in this process that jobs have ended."""
        self._soon(self._ended, list(job_ids))

    def close(self) -> None:
        """Nothing: the socket lives as long as :meth:`listen` runs."""

    def _soon(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed in between: nobody is there to hear it
                loop.call_soon_threadsafe(function, *arguments)

    def _pass_on(self, line: bytes) -> None:
        for worker in self._workers:
            # A worker that is stopped reads nothing: rings for it must not pile up here.
            if worker.transport.get_write_buffer_size() == 0:
                worker.write(line)

    def _ended(self, job_ids: list[str]) -> None:
        if self._on_ended is not None:
            for job_id in job_ids:
                self._on_ended(job_id)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._workers.add(writer)
        writer.write(_line({"welcome": True}))
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "ended" in message:
                    self._ended(message["ended"])
                if "ring" in message:
                    self._pass_on(line)
        except (OSError, ValueError) as error:
            logger.warning("lost a worker on the local bell: %s", error)
        finally:
            self._workers.discard(writer)
            writer.close()


class LocalBell:
    """A worker's end: a :class:`bell.interfaces.Bell` and a :class:`bell.interfaces.Listener` on one connection.

    ``on_ring`` is called in the listening thread for rings of ``model``, and whenever it is connected.
    """

    def __init__(self, path: str, model: str, on_ring: Callable[[], None]) -> None:
        self._path = path
        self._model = model
        self._on_ring = on_ring
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def run(self, on_start: Callable[[], None]) -> None:
        """Stay connected to the hub and hear rings, until :meth:`stop`."""
        on_start()
        while not self._stopped.is_set():
            try:
                self._hear()
            except (OSError, ValueError) as error:
                logger.debug("the local bell is away: %s", error)
            self._stopped.wait(RECONNECT_SECONDS)

    def stop(self) -> None:
        """Make :meth:`run` return at once."""
        self._stopped.set()
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)

    def ring(self, model: str) -> None:
        """Have the hub ring all workers."""
        self._send(_line({"ring": model}))

    def announce(self, job_ids: Sequence[str]) -> None:
        """Tell the API of jobs that have ended."""
        for ids in in_notices(job_ids):
            self._send(_line({"ended": ids}))

    def close(self) -> None:
        """The same as :meth:`stop`."""
        self.stop()

    def _hear(self) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            # Only for sending: a time limit of Python's own would hold for the thread that reads, too.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_LIMIT)
            connection.connect(self._path)
            with self._lock:
                if self._stopped.is_set():
                    return
                self._connection = connection
            try:
                with connection.makefile("rb") as lines:
                    for line in lines:
                        message = json.loads(line)
                        if message.get("welcome") or message.get("ring") == self._model:
                            self._on_ring()
            finally:
                with self._lock:
                    self._connection = None

    def _send(self, line: bytes) -> None:
        with self._lock:
            if self._connection is None:
                return
            try:
                self._connection.sendall(line)
            except OSError as error:
                logger.warning("a message on the local bell was lost: %s", error)
                # Half a line may be on its way, so this connection is of no more use.
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
