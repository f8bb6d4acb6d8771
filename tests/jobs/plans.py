"""The plans that a database makes for statements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event

from jobs.store.database import Database


@contextmanager
def plans_of(store: Database, told_by: str) -> Iterator[list[str]]:
    """Collect the plans of all statements that contain this text."""
    explain = "EXPLAIN QUERY PLAN " if store.is_sqlite else "EXPLAIN "
    plans: list[str] = []

    def record(connection: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if told_by in statement:
            cursor = connection.connection.cursor()
            cursor.execute(explain + statement, parameters)
            plans.append("\n".join(str(row) for row in cursor.fetchall()))

    event.listen(store.engine, "before_cursor_execute", record)
    yield plans
    event.remove(store.engine, "before_cursor_execute", record)
