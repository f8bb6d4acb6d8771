"""The threads in which blocking work runs, so that it never blocks the event loop.

SQL and text have separate sets of threads, so that a burst of long texts to tokenize does not delay the short SQL
statements of other requests. Tenants take turns at both, so that nobody waits for all statements or texts of another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
from anyio.to_thread import run_sync

from api.turns import Turns

SQL_THREADS = 12
"""At most the number of connections in the database's pool, because more threads would wait for a connection."""

SHARED_SQL_THREADS, FEWEST_SQL_THREADS = 48, 4
"""What processes that serve a port together have in all, as far as each has the fewest: PostgreSQL has 100 connections
unless told otherwise."""

TEXT_THREADS = 4
"""Parsing and tokenizing are bound by the processor, so more threads would not be faster."""

THREADS_EACH = TEXT_THREADS // 2
"""The threads for text that one tenant can have at a time. The others stay free for other tenants."""

TENANTS_SHARE = 3 / 4
"""The part of the threads for SQL that work of tenants can have. The rest is for what all requests need: to commit what
they submit together, to look up keys, and to read results."""

TENANT_SHARE = 2 / 3
"""The part of those that one tenant can have at a time. The others stay free for other tenants."""

P = ParamSpec("P")
T = TypeVar("T")


def sql_threads(processes: int) -> int:
    """Return the number of threads for SQL that each of these processes has."""
    return min(SQL_THREADS, max(FEWEST_SQL_THREADS, SHARED_SQL_THREADS // processes))


class Threads:
    """Bounded threads for SQL and for text. Create it inside the event loop that uses it.

    A thread can't be interrupted. A caller whose request ends waits for its thread. A background task that is cancelled
    with its process does not: what its thread is at may still be committed a moment later.
    """

    def __init__(self, processes: int = 1) -> None:
        """processes: how many processes share the database's connections with this one, this one included."""
        threads = sql_threads(processes)
        self._sql = anyio.CapacityLimiter(threads)
        places = int(threads * TENANTS_SHARE)
        self._turns = Turns(places, int(places * TENANT_SHARE))
        self._text = anyio.CapacityLimiter(TEXT_THREADS)
        self._text_turns = Turns(TEXT_THREADS, THREADS_EACH)

    async def sql(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that talks to the database for more than one tenant, or does little for one."""
        return await run_sync(partial(function, *args, **kwargs), limiter=self._sql)

    async def sql_of(self, tenant: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that talks to the database for a tenant, when it is the tenant's turn."""
        async with self._turns.turn(tenant):
            return await run_sync(partial(function, *args, **kwargs), limiter=self._sql)

    async def text(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that parses, tokenizes or serialises for no tenant, or within the turn of one."""
        return await run_sync(partial(function, *args, **kwargs), limiter=self._text)

    async def text_of(self, tenant: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that parses, tokenizes or serialises for a tenant, when it is the tenant's turn."""
        async with self.text_turn(tenant):
            return await self.text(function, *args, **kwargs)

    def text_turn(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """Wait for the tenant's turn at a thread for text, and keep it until the end of the block."""
        return self._text_turns.turn(tenant)
