"""Measure what it takes to accept submissions in groups: ``python -m benchmarks.accepting --database-url URL``.

Calls of one item that share queries are accepted in groups of each size, one group after another. Then as many requests
as a busy API process has submit at once, through one :class:`api.acceptance.accepting.Acceptor` and through two that
take turns, so that two groups are committed at a time. Printed for each submission: SQL statements, microseconds of
this process's processor time, and microseconds that passed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sqlalchemy.event import listen

from api.acceptance.accepting import Acceptor
from api.acceptance.ringing import Ringer
from api.budget import Budget
from api.metrics import Metrics
from api.threads import Threads
from api.waiting.ended_jobs import EndedJobs
from bell.interfaces import Bell
from benchmarks.instant_worker import CARD
from jobs.invariant_watch import Watch
from jobs.queue.accept import accept, accept_group
from jobs.store.database import Database
from jobs.store.migration import migrate
from jobs.store.records import Accepted, Origin, Submission
from scoring.layout import Rows
from scoring.options import Priority
from scoring.work import chunk_of
from settings.limits import LimitSettings
from settings.store import StoreSettings

QUERIES = 50
QUERY, ITEM = 100, 20
"""Tokens of a query and of an item."""

SIZES = (1, 8, 32)
REQUESTS = 64
"""That wait at the same time."""


class SilentBell:
    """A bell that costs nothing."""

    def ring(self, model: str) -> None:
        """Do nothing."""

    def announce(self, job_ids: object) -> None:
        """Do nothing."""


def call(number: int) -> Submission:
    """Return a call of one item."""
    return Submission(
        model=CARD.name,
        work_key=CARD.work_key,
        prefix=np.full(QUERY, number % QUERIES, np.int32),
        chunks=[chunk_of(0, Rows.pack([np.full(ITEM, number % CARD.vocabulary, np.int32)], [QUERY]))],
        label_token_ids=(1, 2),
        prompt_tokens=QUERY + ITEM,
        total_items=1,
        origin=Origin.CALL,
        priority=Priority.INTERACTIVE,
    )


class Statements:
    """Counts the statements that are sent."""

    def __init__(self, database: Database) -> None:
        self.sent = 0
        listen(database.engine, "before_cursor_execute", self._count)

    def _count(self, *_: Any) -> None:
        self.sent += 1


def measure(name: str, statements: Statements, count: int, run: Callable[[], None]) -> dict[str, Any]:
    """Return what a run takes for each of ``count`` submissions."""
    run()  # connects and prepares the statements
    sent, processor, began = statements.sent, time.process_time(), time.perf_counter()
    run()
    passed, processor = time.perf_counter() - began, time.process_time() - processor
    found = {
        "name": name,
        "statements": (statements.sent - sent) / count,
        "processor_us": round(1e6 * processor / count),
        "passed_us": round(1e6 * passed / count),
    }
    print(f"{name:24} {found['statements']:6.2f} statements {found['processor_us']:6} {found['passed_us']:6} us")
    return found


def accept_in_groups(database: Database, calls: list[Submission], size: int) -> None:
    """Accept calls in groups, one after another."""
    for start in range(0, len(calls), size):
        assert all(isinstance(outcome, Accepted) for outcome in accept_group(database, calls[start : start + size]))


async def submit_at_once(database: Database, calls: list[Submission], acceptors: int) -> None:
    """Accept calls as a busy API process does."""
    bell: Bell = SilentBell()
    with Ringer(bell) as ringer:
        metrics = Metrics(database, Watch(database), 20.0, EndedJobs(), Budget(LimitSettings()))
        threads = Threads()
        all_of_them = [Acceptor(database, threads, ringer, metrics) for _ in range(acceptors)]
        left = iter(enumerate(calls))

        async def request() -> None:
            for number, one in left:
                await all_of_them[number % acceptors].accept(one)

        await asyncio.gather(*(request() for _ in range(REQUESTS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--calls", type=int, default=960)
    options = parser.parse_args()
    database = Database.open(StoreSettings(database_url=options.database_url))
    migrate(database)
    calls = [call(number) for number in range(options.calls)]
    for one in calls[:QUERIES]:
        accept(database, one)
    statements = Statements(database)
    found = [
        measure(f"groups of {size}", statements, len(calls), lambda size=size: accept_in_groups(database, calls, size))  # type: ignore[misc]
        for size in SIZES
    ]
    found += [
        measure(
            f"{REQUESTS} requests, {acceptors} at a time",
            statements,
            len(calls),
            lambda acceptors=acceptors: asyncio.run(submit_at_once(database, calls, acceptors)),  # type: ignore[misc]
        )
        for acceptors in (1, 2)
    ]
    print(json.dumps(found))
    database.close()


if __name__ == "__main__":
    main()
