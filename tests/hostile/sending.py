"""Send the plan of an attack over a connection, and read what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum

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


class Ended(StrEnum):
    """How a connection ended; further down is worse."""

    ANSWERED = "answered"
    ABORTED = "aborted"  # by us
    CLOSED = "closed"  # by the service, without all answers
    NOT_CONNECTED = "not connected"
    HUNG = "hung"  # neither answered nor closed in time


@dataclass(frozen=True)
class Outcome:
    """What became of a plan."""

    answers: list[Answer]
    ended: Ended
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


async def perform(port: int, plan: Plan, patience: float, *, pause: float = 0.0, stall: float = 0.0) -> Outcome:
    """Do what a plan says, on connections of its own.

    patience: seconds within which everything must have been answered, or the connection closed by the server. pause:
    seconds between the pieces of what is sent slowly. stall: seconds for which a slow reader reads nothing.
    """
    outcomes = await asyncio.gather(
        *(_perform_one(port, plan, patience, pause, stall) for _ in range(plan.connections))
    )
    return Outcome(
        [answer for outcome in outcomes for answer in outcome.answers],
        max((outcome.ended for outcome in outcomes), key=list(Ended).index),
        max(outcome.seconds for outcome in outcomes),
        any(outcome.garbage for outcome in outcomes),
    )


async def _perform_one(port: int, plan: Plan, patience: float, pause: float, stall: float) -> Outcome:
    started = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return Outcome([], Ended.NOT_CONNECTED, time.monotonic() - started)
    found = _Answers(plan.only_head)
    async with _closing(writer):
        sending = asyncio.create_task(_send(writer, plan, pause))
        try:
            async with asyncio.timeout(patience):
                if plan.ending is Ending.ABORT:
                    await sending
                    ended = Ended.ABORTED
                else:
                    await asyncio.sleep(stall if plan.ending is Ending.STALL else 0)
                    ended = await _read(reader, found, plan.requests)
        except TimeoutError:
            ended = Ended.HUNG
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
    return Outcome([one for one in found.answers if one.status], ended, time.monotonic() - started, found.garbage)


async def _send(writer: asyncio.StreamWriter, plan: Plan, pause: float) -> None:
    first = True
    with contextlib.suppress(OSError):
        for piece in plan.pieces:
            if plan.slowly and not first:
                await asyncio.sleep(pause)
            first = False
            writer.write(piece)
            await writer.drain()
        if plan.ending is Ending.CLOSE and writer.can_write_eof():
            writer.write_eof()


async def _read(reader: asyncio.StreamReader, found: _Answers, wanted: int) -> Ended:
    while found.finished < wanted:
        try:
            data = await reader.read(2**16)
        except OSError:
            return Ended.CLOSED
        if not data:
            return Ended.CLOSED
        found.feed(data)
        if found.garbage:
            return Ended.ANSWERED
    return Ended.ANSWERED


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
