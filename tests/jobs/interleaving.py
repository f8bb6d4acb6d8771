"""Running an action between two statements of a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.event import listen

from jobs.store.database import Database

READ_JOB = "SELECT jobs.id, jobs.tenant, jobs.model,"
"""A part of the statement that reads a whole job."""


def once_after(store: Database, part: str, action: Callable[[], object], *, after: int = 1) -> None:
    """Run an action right after a statement that contains ``part``, before its sender continues.

    after: after how many such statements; by default, after the next one.
    """
    remaining = after

    def act(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal remaining
        if remaining and part in " ".join(statement.split()):
            remaining -= 1
            if remaining == 0:
                action()

    listen(store.engine, "after_cursor_execute", act)
