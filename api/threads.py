"""The threads in which blocking work runs, so that it never blocks the event loop.

SQL and text have separate sets of threads, so that a burst of long texts to tokenize does not delay the short SQL
statements of other requests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
from anyio.to_thread import run_sync

SQL_THREADS = 12
"""At most the number of connections in the database's pool, because more threads would wait for a connection."""

SHARED_SQL_THREADS, FEWEST_SQL_THREADS = 48, 4
"""What processes that serve a port together have in all, as far as each has the fewest: PostgreSQL has 100 connections
unless told otherwise."""

TEXT_THREADS = 4
"""Parsing and tokenizing are bound by the processor, so more threads would not be faster."""

P = ParamSpec("P")
T = TypeVar("T")


def sql_threads(processes: int) -> int:
    """Return the number of threads for SQL that each of these processes has."""
    return min(SQL_THREADS, max(FEWEST_SQL_THREADS, SHARED_SQL_THREADS // processes))


class Threads:
    """Bounded threads for SQL and for text. Create it inside the event loop that uses it.

    A cancelled caller waits until its thread has finished, so no work continues after its request has ended.
    """

    def __init__(self, processes: int = 1) -> None:
        """processes: how many processes share the database's connections with this one, this one included."""
        self._sql = anyio.CapacityLimiter(sql_threads(processes))
        self._text = anyio.CapacityLimiter(TEXT_THREADS)

    async def sql(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that talks to the database."""
        return await run_sync(partial(function, *args, **kwargs), limiter=self._sql)

    async def text(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that parses, tokenizes or serialises."""
        return await run_sync(partial(function, *args, **kwargs), limiter=self._text)
