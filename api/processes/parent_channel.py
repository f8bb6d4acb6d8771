"""The messages between a child and its parent, over a socket that the child inherits.

Both send lines of JSON, each a list that begins with what it is:

- ``["serving"]``: the child takes requests.
- ``["count", NUMBER, TENANT, PER_SECOND, PER_MINUTE]``: the child asks to count a request against rate limits. The
  parent answers ``["counted", NUMBER, STATES]``.
- ``["turn", NUMBER, TENANT]``: the child asks for a turn at reading a long body. The parent answers ``["turn",
  NUMBER]`` when it is the child's turn. With ``["end", NUMBER]`` the child ends its turn, or no longer wants one.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

from api.callers.request_counts import LimitState, OwnCounts
from api.turns import TurnTaking

ANSWER_SECONDS = 0.25
"""How long a request waits for the parent to count it."""

UNREAD_BYTES = 65_536
"""Nothing is asked of a parent that has left this much unread."""

SERVING, COUNT, COUNTED, TURN, END = "serving", "count", "counted", "turn", "end"


def _line(*message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


class ParentChannel:
    """A child's end. For use in one event loop, while :meth:`open` is entered. It also is a TurnTaking."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writer: asyncio.StreamWriter | None = None
        self._asked = 0
        self._answers: dict[int, asyncio.Future[list[LimitState]]] = {}
        self._turns: dict[int, asyncio.Event] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Read the parent's answers until the end of the block."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._connection)
        reading = asyncio.create_task(self._read(reader))
        try:
            yield
        finally:
            reading.cancel()
            self._writer.close()
            self._writer = None

    def say_serving(self) -> None:
        """Tell the parent that this process takes requests."""
        self._say(SERVING)

    async def count(self, tenant: str, per_second: int | None, per_minute: int | None) -> list[LimitState]:
        """Have the parent count a request. Raises TimeoutError if it does not answer."""
        if self._writer is None or self._writer.transport.get_write_buffer_size() > UNREAD_BYTES:
            raise TimeoutError
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[list[LimitState]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._say(COUNT, number, tenant, per_second, per_minute)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        finally:
            del self._answers[number]

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for the turn that the parent gives, and keep it until the end of the block."""
        self._asked += 1
        number = self._asked
        mine = self._turns[number] = asyncio.Event()
        self._say(TURN, number, tenant)
        try:
            await mine.wait()
            yield
        finally:
            del self._turns[number]
            self._say(END, number)

    def _say(self, *message: object) -> None:
        if self._writer is not None:
            self._writer.write(_line(*message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            what, number, *rest = json.loads(line)
            if what == TURN:
                if (mine := self._turns.get(number)) is not None:
                    mine.set()
                continue
            answer = self._answers.get(number)
            if answer is not None and not answer.done():
                answer.set_result([LimitState(**state) for state in rest[0]])


async def serve_child(connection: socket.socket, counts: OwnCounts, turns: TurnTaking, serving: asyncio.Event) -> None:
    """The parent's end: set ``serving`` when the child says that it serves, and answer it until it has ended."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    held: dict[int, asyncio.Task[None]] = {}  # the turns that the child has or waits for

    async def hold(number: int, tenant: str) -> None:
        async with turns.turn(tenant):
            writer.write(_line(TURN, number))
            await asyncio.get_running_loop().create_future()  # until it is cancelled

    try:
        with suppress(ConnectionError):
            while line := await reader.readline():
                message: list[Any] = json.loads(line)
                match message:
                    case ["serving"]:
                        serving.set()
                    case ["count", number, tenant, per_second, per_minute]:
                        states = counts.count(tenant, per_second, per_minute)
                        writer.write(_line(COUNTED, number, [asdict(state) for state in states]))
                    case ["turn", number, tenant]:
                        held[number] = asyncio.create_task(hold(number, tenant))
                    case ["end", number]:
                        held.pop(number).cancel()
    finally:
        for turn in held.values():
            turn.cancel()
        writer.close()
