"""Watch a service from a process of its own: a quiet tenant who calls it, somebody who asks whether it is alive, and a
probe of what it uses. Attacks are sent from another process, whose work would otherwise be measured as the service's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import psycopg

from tests.hostile.attacks.attack import Plan, Request
from tests.hostile.processes import Usage, usage_of
from tests.hostile.sending import perform

CALLS_PER_SECOND = 10
LOOKS_PER_SECOND = 20  # at /livez
PROBE_SECONDS = 0.25
DATABASE_SECONDS = 5.0
LATE_SECONDS = 0.25
PATIENCE = 60.0

NICENESS = -10
"""Of the watching process, if it may have it: its own waits for a processor would be measured as the service's."""

BODY = {
    "query": "Query: how do I care for indoor plants?\n",
    "items": ["Document: Water the fern once a week.\nRelevant:", "Document: The train leaves at nine.\nRelevant:"],
    "labels": [" yes", " no"],
    "apply_softmax": True,
}
"""What the quiet tenant sends."""


@dataclass(frozen=True)
class Watched:
    """Whom and what to watch."""

    port: int
    key: str  # of the quiet tenant
    pid: int  # of the API
    database: str  # its address, for psycopg


@dataclass
class Phase:
    """What was seen during one phase. Times are in seconds, from the moment at which a request was due."""

    calls: list[float] = field(default_factory=list)  # answered with 200
    refused: Counter[str] = field(default_factory=Counter)  # calls that were answered otherwise, by status or end
    looks: list[float] = field(default_factory=list)  # at /livez
    late: list[tuple[float, float]] = field(default_factory=list)  # looks that took long: when they began, and the time
    not_alive: Counter[str] = field(default_factory=Counter)  # looks that were answered otherwise
    peak: Usage = field(default_factory=Usage)  # the most of each, maybe at different moments
    last: Usage = field(default_factory=Usage)
    database: int = 0  # its largest size, in bytes


class Watch:
    """A watching process. Leave it to end it."""

    def __init__(self, watched: Watched) -> None:
        context = get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_watch, args=(watched, theirs), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()

    def begin(self, phase: str) -> None:
        """Count what is seen from now on to this phase."""
        self._ours.send(phase)

    def finish(self) -> dict[str, Phase]:
        """Stop watching and return what was seen in each phase."""
        self._ours.send(None)
        seen: dict[str, Phase] = self._ours.recv()
        return seen


def _watch(watched: Watched, commands: Connection) -> None:
    with contextlib.suppress(PermissionError):
        os.nice(NICENESS)
    asyncio.run(_Watcher(watched, commands).run())


class _Watcher:
    def __init__(self, watched: Watched, commands: Connection) -> None:
        self._watched = watched
        self._commands = commands
        self._phases: dict[str, Phase] = defaultdict(Phase)
        self._phase = ""
        host = (b"Host", b"quiet.example")
        self._look = Request(b"GET", b"/livez", (host,)).encode()
        headers = (host, (b"Authorization", b"Bearer " + watched.key.encode()), (b"Content-Type", b"application/json"))
        self._call = Request(b"POST", b"/v1/score", headers, json.dumps(BODY).encode()).encode()

    async def run(self) -> None:
        """Watch until told to stop."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._commands.fileno(), self._take_command, stop)
        tasks = [
            asyncio.create_task(task)
            for task in (
                _every(1 / CALLS_PER_SECOND, self._call_once),
                _every(1 / LOOKS_PER_SECOND, self._look_once),
                _every(PROBE_SECONDS, self._probe),
                _every(DATABASE_SECONDS, self._measure_database),
            )
        ]
        await stop.wait()
        for task in tasks:
            task.cancel()
        self._phases.pop("", None)
        with contextlib.suppress(BrokenPipeError):  # whoever started it has gone
            self._commands.send(dict(self._phases))

    def _take_command(self, stop: asyncio.Event) -> None:
        try:
            phase = self._commands.recv()
        except EOFError:
            phase = None
        if phase is None:
            stop.set()
        else:
            self._phase = phase

    async def _call_once(self) -> None:
        phase = self._phases[self._phase]
        outcome = await perform(self._watched.port, Plan([self._call]), PATIENCE)
        if [answer.status for answer in outcome.answers] == [200]:
            phase.calls.append(outcome.seconds)
        else:
            phase.refused[str(outcome.answers[0].status) if outcome.answers else outcome.ended.value] += 1

    async def _look_once(self) -> None:
        phase = self._phases[self._phase]
        began = time.monotonic()
        outcome = await perform(self._watched.port, Plan([self._look]), PATIENCE)
        phase.looks.append(outcome.seconds)
        if outcome.seconds > LATE_SECONDS:
            phase.late.append((began, outcome.seconds))
        if [answer.status for answer in outcome.answers] != [200]:
            phase.not_alive[str(outcome.answers[0].status) if outcome.answers else outcome.ended.value] += 1

    async def _probe(self) -> None:
        phase = self._phases[self._phase]
        phase.last = now = await asyncio.to_thread(usage_of, self._watched.pid)
        peak = phase.peak
        phase.peak = Usage(
            max(peak.memory, now.memory), max(peak.descriptors, now.descriptors), max(peak.threads, now.threads)
        )

    async def _measure_database(self) -> None:
        phase = self._phases[self._phase]
        with contextlib.suppress(psycopg.OperationalError):
            phase.database = max(phase.database, await asyncio.to_thread(database_size, self._watched.database))


def database_size(address: str) -> int:
    """Return the bytes of a PostgreSQL database on disk."""
    with psycopg.connect(address, connect_timeout=5) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])


async def _every(seconds: float, action: Callable[[], Awaitable[None]]) -> None:
    """Begin an action at a fixed pace, whether or not those before have ended."""
    running: set[asyncio.Future[None]] = set()
    due = time.monotonic()
    while True:
        task = asyncio.ensure_future(action())
        running.add(task)
        task.add_done_callback(running.discard)
        due += seconds
        await asyncio.sleep(max(0.0, due - time.monotonic()))
