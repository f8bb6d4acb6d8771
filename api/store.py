"""The database, and the threads in which requests use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from api.threads import Threads
from jobs.store.database import Database

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """What a process needs to use the database without blocking its event loop."""

    database: Database
    threads: Threads

    async def of(
        self, tenant: str, function: Callable[Concatenate[Database, str, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return ``function(database, tenant, ...)``, called in a thread when it is the tenant's turn."""
        return await self.in_turn(tenant, function, tenant, *args, **kwargs)

    async def in_turn(
        self, tenant: str, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return ``function(database, ...)``, called in the same way."""
        return await self.threads.sql_of(tenant, function, self.database, *args, **kwargs)
