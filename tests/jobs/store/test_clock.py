"""The clock of the database as an SQL expression."""

from __future__ import annotations

import time

from sqlalchemy import select

from jobs.store.clock import NOW
from jobs.store.database import Database


def test_statements_with_the_clock_are_compiled_once() -> None:
    """SQLAlchemy compiles a statement without a cache key anew whenever it is sent."""
    assert select(NOW)._generate_cache_key() is not None


def test_the_clock_counts_unix_seconds(store: Database) -> None:
    with store.read() as tx:
        assert abs(tx.scalar(select(NOW)) - time.time()) < 60.0
