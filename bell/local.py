"""The bell of embedded mode: a Unix socket that the API serves, without Redis.

Both sides send lines of JSON. The API sends ``{"ring": MODEL}`` to the workers, and workers send
``{"ended": {JOB_ID: RESULT or null, ...}}`` to the API. A worker may also send a ring, which the API passes on to all
workers. The API greets a worker with ``{"welcome": true}``: from then on rings reach the worker. The worker treats the
greeting as a ring, because it may have missed rings before.

If several processes serve the API, their parent serves the socket, and each of them connects to it as workers do
(:mod:`bell.local_member`). It first sends ``{"hear": "ended"}``: from then on it gets what ended, and no rings.
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from bell.interfaces import OnEnded
from bell.notices import read_notices, write_notices

RECONNECT_SECONDS = 0.1  # pause before a worker connects again
UNHEARD_BYTES = 1_000_000
"""An API process that has left this much unread misses what ends, and learns it by polling."""

_SEND_LIMIT = struct.pack("ll", 0, 500_000)
"""Time limit for sending: half a second, as a ``struct timeval``."""

logger = logging.getLogger(__name__)


def line_of(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def ended_lines(job_ids: Sequence[str], results: Mapping[str, str] | None) -> Iterator[bytes]:
    return (b'{"ended":%b}\n' % message for message in write_notices(job_ids, results))


class LocalHub:
    """The API's end: a BellConnection and, while :meth:`listen` runs, an EndedJobsListener."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: set[asyncio.StreamWriter] = set()
        self._apis: set[asyncio.StreamWriter] = set()
        self._on_ended: OnEnded | None = None

    async def listen(self, on_ended: OnEnded) -> None:
        """Serve the socket, and call ``on_ended`` with each announced job, until cancelled."""
        self._loop, self._on_ended = asyncio.get_running_loop(), on_ended
        server = await asyncio.start_unix_server(self._serve, self._path)  # replaces what a crash left at the path
        os.chmod(self._path, 0o600)
        try:
            # Not serve_forever(): since Python 3.12, after it was cancelled, it waits for all workers to disconnect.
            await asyncio.get_running_loop().create_future()
        finally:
            self._loop = None
            server.close()
            for client in self._workers | self._apis:
                client.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def ring(self, model: str) -> None:
        """Ring all connected workers."""
        self._in_loop(self._pass_on, line_of({"ring": model}))

    def announce(self, job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> None:
        """Report ended jobs within this process."""
        self._in_loop(self._report_ended, dict.fromkeys(job_ids) | dict(results or {}))

    def close(self) -> None:
        """Do nothing: the socket is closed when :meth:`listen` ends."""

    def _in_loop(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, so nobody listens
                loop.call_soon_threadsafe(function, *arguments)

    def _pass_on(self, line: bytes) -> None:
        for worker in self._workers:
            # A stopped worker process reads nothing: rings for it must not pile up here.
            if worker.transport.get_write_buffer_size() == 0:
                worker.write(line)

    def _report_ended(self, ended: Mapping[str, str | None]) -> None:
        if self._on_ended is not None:
            for job_id, result in ended.items():
                self._on_ended(job_id, result)

    def _pass_on_ended(self, line: bytes) -> None:
        for api in self._apis:
            if api.transport.get_write_buffer_size() < UNHEARD_BYTES:
                api.write(line)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._workers.add(writer)
        writer.write(line_of({"welcome": True}))
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if not isinstance(message, dict):
                    raise ValueError("a message must be an object")
                if message.get("hear") == "ended":
                    self._workers.discard(writer)
                    self._apis.add(writer)
                if "ended" in message:
                    self._report_ended(read_notices(message["ended"]))
                    self._pass_on_ended(line)
                if "ring" in message:
                    self._pass_on(line)
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("lost a client on the local bell: %s", error)
        finally:
            self._workers.discard(writer)
            self._apis.discard(writer)
            writer.close()


class LocalBell:
    """A worker's end: both a :class:`bell.interfaces.BellConnection` and a :class:`bell.interfaces.RingListener`.

    ``on_ring`` is called in the listening thread for each ring of its models, and after each connection.
    """

    def __init__(self, path: str, models: Collection[str], on_ring: Callable[[], None]) -> None:
        self._path = path
        self._models = models
        self._on_ring = on_ring
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def run(self, on_start: Callable[[], None]) -> None:
        """Stay connected to the API and listen for rings until :meth:`stop`."""
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
        """Have the API ring all workers."""
        self._send(line_of({"ring": model}))

    def announce(self, job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> None:
        """Tell the API which jobs have ended, of some of them with their results."""
        for line in ended_lines(job_ids, results):
            self._send(line)

    def close(self) -> None:
        """Stop listening, and close the connection."""
        self.stop()

    def _hear(self) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            # A limit for sending alone: Python's own socket timeout would also hold for the thread that reads.
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
                        if message.get("welcome") or message.get("ring") in self._models:
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
                # Half a line may have been sent, so nothing more can be sent on this connection.
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
