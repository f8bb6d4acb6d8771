"""Running an action between two statements of a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.event import listen

from jobs.store.database import Database


def once_after(store: Database, part: str, action: Callable[[], object]) -> None:
    """Run an action right after the next statement that contains ``part``, before its sender continues."""
    waiting = [action]

    def act(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if waiting and part in " ".join(statement.split()):
            waiting.pop()()

    listen(store.engine, "after_cursor_execute", act)
