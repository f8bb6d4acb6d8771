"""A store on either database, and a clock that tests turn by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.event import listen

from jobs.store.clock import UNIX_SECONDS
from jobs.store.database import Database
from settings.store import StoreSettings


class HandClock:
    """A clock that stands still until it is turned."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now += seconds


def use_clock(database: Database, clock: Callable[[], float]) -> None:
    """Have every statement that is sent from now on read this clock instead of the database's own."""

    def replace_now(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        value = f"CAST({clock()!r} AS double precision)"
        return statement.replace(UNIX_SECONDS[database.engine.dialect.name], value), parameters

    listen(database.engine, "before_cursor_execute", replace_now, retval=True)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(store_url: str) -> Iterator[Database]:
    """A fresh store, on the database's own clock; the test runs on both databases."""
    database = Database.open(StoreSettings(database_url=store_url))
    yield database
    database.close()


@pytest.fixture
def timed_store(store_url: str, clock: HandClock) -> Iterator[Database]:
    """The same on the hand clock: lease 60 s, normal slack 5 s, bulk 300 s, kept for 7 days."""
    database = Database.open(StoreSettings(database_url=store_url))
    use_clock(database, clock)
    yield database
    database.close()


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[Database]:
    """A fresh store on PostgreSQL, for what only happens where rows are locked one by one."""
    database = Database.open(StoreSettings(database_url=postgres_url))
    yield database
    database.close()
