"""Stores for tests."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.event import listen
from sqlalchemy.util import LRUCache

from jobs.store.database import Database
from jobs.store.migration import migrate
from settings.store import StoreSettings


class _CompiledStatements(LRUCache[Any, Any]):
    """Statements as text, for all engines of this process.

    SQLAlchemy's keys begin with the dialect of one engine. Here all dialects of a database and driver are one.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_of_any_engine(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_of_any_engine(key), value)


def _of_any_engine(key: Any) -> Any:
    dialect, *rest = key
    return (type(dialect), dialect.server_version_info, *rest)


def share_compiled_statements() -> None:
    """Have all engines of this process share the statements that they compile.

    A process of the service has one engine, which compiles each statement once. A test process has an engine for each
    test, and would compile the same statements again in each of them.
    """
    statements = _CompiledStatements(capacity=2000)

    def use(connection: Connection) -> None:
        connection.execution_options(compiled_cache=statements)

    listen(Engine, "engine_connect", use)


def migrate_store(url: str) -> None:
    """Bring the store at a URL to the newest schema, and leave no connection to it open."""
    with closing(Database.open(StoreSettings(database_url=url))) as database:
        migrate(database)
