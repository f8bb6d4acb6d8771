"""Where work that blocks runs, so that the event loop never does.

Two bounded sets of threads: a burst of long texts to tokenise can't keep the short SQL of other requests waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
from anyio.to_thread import run_sync

SQL_THREADS = 12
"""At most the connections a database pool holds; more would wait for one another there."""

TEXT_THREADS = 4
"""Parsing and tokenising are bound by the processor; more threads would only share it."""

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """Bounded threads for SQL and for text. To be made inside the event loop that uses it.

    A cancelled caller waits until its thread is done, so nothing goes on unseen after a request has ended.
    """

    def __init__(self) -> None:
        self._sql = anyio.CapacityLimiter(SQL_THREADS)
        self._text = anyio.CapacityLimiter(TEXT_THREADS)

    async def sql(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that talks to the database."""
        return await run_sync(partial(function, *args, **kwargs), limiter=self._sql)

    async def text(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that parses, tokenises or serialises much."""
        return await run_sync(partial(function, *args, **kwargs), limiter=self._text)
