"""The bell of embedded mode, for one of several API processes: a client of the socket that their parent serves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping, Sequence

from bell.interfaces import OnEnded
from bell.local import RECONNECT_SECONDS, UNHEARD_BYTES, ended_lines, line_of
from bell.notices import read_notices

logger = logging.getLogger(__name__)


class LocalMember:
    """A BellConnection and, while :meth:`listen` runs, an EndedJobsListener. It says and hears what :mod:`bell.local`
    documents.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer: asyncio.StreamWriter | None = None  # while it is connected

    async def listen(self, on_ended: OnEnded) -> None:
        """Stay connected, and call ``on_ended`` with each announced job, until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    await self._hear(on_ended)
                except (OSError, ValueError, RecursionError) as error:
                    logger.debug("the local bell is away: %s", error)
                await asyncio.sleep(RECONNECT_SECONDS)
        finally:
            self._loop = None

    def ring(self, model: str) -> None:
        """Ring all connected workers."""
        self._send(line_of({"ring": model}))

    def announce(self, job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> None:
        """Report ended jobs to all API processes, this one included."""
        for line in ended_lines(job_ids, results):
            self._send(line)

    def close(self) -> None:
        """Do nothing: the connection is closed when :meth:`listen` ends."""

    async def _hear(self, on_ended: OnEnded) -> None:
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            writer.write(line_of({"hear": "ended"}))
            self._writer = writer
            while line := await reader.readline():
                for job_id, result in read_notices(json.loads(line).get("ended", {})).items():
                    on_ended(job_id, result)
        finally:
            self._writer = None
            writer.close()

    def _send(self, line: bytes) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._write, line)

    def _write(self, line: bytes) -> None:
        if self._writer is not None and self._writer.transport.get_write_buffer_size() < UNHEARD_BYTES:
            self._writer.write(line)
