"""Send the plan of an attack over a connection, and read what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httptools

from tests.hostile.attacks.attack import Ending, Plan

KEPT_BODY = 2**20
"""Bytes of an answer's body that are kept. The rest is read and forgotten."""


@dataclass
class Answer:
    """One answer."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    size: int = 0  # of the body, which may be longer than what is kept
    complete: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a plan."""

    answers: list[Answer]
    ended: str  # `answered`, `closed` without (all) answers, `aborted` by us, `hung`, or `no connection`
    seconds: float
    garbage: bool = False  # the server sent something that is not HTTP


class _Answers:
    """The answers on a connection, for httptools."""

    def __init__(self, only_head: bool) -> None:
        self.answers: list[Answer] = []
        self.finished = 0
        self.garbage = False
        self._only_head = only_head
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            # Behind the head of an answer without a body, the parser waits for the body.
            self.garbage = not self._only_head

    def on_message_begin(self) -> None:
        self.answers.append(Answer())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answers[-1].headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        answer = self.answers[-1]
        answer.status = self._parser.get_status_code()
        if self._only_head:
            self._complete(answer)

    def on_body(self, body: bytes) -> None:
        answer = self.answers[-1]
        answer.size += len(body)
        if len(answer.body) < KEPT_BODY:
            answer.body += body

    def on_message_complete(self) -> None:
        answer = self.answers[-1]
        if 100 <= answer.status < 200:
            self.answers.pop()
        else:
            self._complete(answer)

    def _complete(self, answer: Answer) -> None:
        if not answer.complete:
            answer.complete = True
            self.finished += 1


async def perform(port: int, plan: Plan, patience: float) -> Outcome:
    """Do what a plan says, on a connection of its own.

    patience: seconds within which everything must have been answered, or the connection closed by the server.
    """
    started = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return Outcome([], "no connection", time.monotonic() - started)
    found = _Answers(plan.only_head)
    async with _closing(writer):
        sending = asyncio.create_task(_send(writer, plan))
        try:
            async with asyncio.timeout(patience):
                if plan.ending is Ending.ABORT:
                    await sending
                    ended = "aborted"
                else:
                    await asyncio.sleep(plan.stall)
                    ended = await _read(reader, found, plan.requests)
        except TimeoutError:
            ended = "hung"
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
    return Outcome([one for one in found.answers if one.status], ended, time.monotonic() - started, found.garbage)


async def _send(writer: asyncio.StreamWriter, plan: Plan) -> None:
    first = True
    with contextlib.suppress(OSError):
        for piece in plan.pieces:
            if plan.pause and not first:
                await asyncio.sleep(plan.pause)
            first = False
            writer.write(piece)
            await writer.drain()
        if plan.ending is Ending.CLOSE and writer.can_write_eof():
            writer.write_eof()


async def _read(reader: asyncio.StreamReader, found: _Answers, wanted: int) -> str:
    while found.finished < wanted:
        try:
            data = await reader.read(2**16)
        except OSError:
            return "closed"
        if not data:
            return "closed"
        found.feed(data)
        if found.garbage:
            return "answered"
    return "answered"


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Reset the connection at the end, so that no port of this machine stays in use."""
    try:
        yield
    finally:
        connection = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
