"""Statements of PostgreSQL that every call waits for. They are compiled once, and the driver gets them as they are.

SQLAlchemy would bind the parameters and describe the columns for a tenth to a fifth of a millisecond each time, which
is as long as PostgreSQL takes to carry a statement out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import ClauseElement, Connection, Text, literal_column
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError

from jobs.store.database import Transaction
from jobs.store.postgresql import WatchedConnection, condensed

WITHOUT_WAITING_FOR_THE_DISK = literal_column("set_config('synchronous_commit', 'off', true)", Text)
"""Is "off". A statement that is its own transaction and evaluates this does not wait for the disk."""


class HotStatement:
    """A statement whose parameters and columns need no conversion by SQLAlchemy."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement

    @property
    def text(self) -> str:
        """The statement as the driver gets it."""
        return self._compiled.sql

    def rows(self, tx: Transaction, values: Mapping[str, Any]) -> Sequence[Any]:
        """Execute the statement, and return all rows, with their columns as attributes. Raises as SQLAlchemy does."""
        sql, constants = self._compiled
        connection, parameters = tx.connection, {**constants, **values}
        events, errors = connection.engine.dispatch, connection.dialect.dispatch
        if events.before_cursor_execute or events.after_cursor_execute or errors.handle_error:
            return connection.exec_driver_sql(sql, parameters).all()  # Somebody watches SQLAlchemy.
        driver = cast("WatchedConnection", connection.connection.driver_connection)
        try:
            with driver.cursor(row_factory=namedtuple_row) as cursor:
                return cursor.execute(sql, parameters).fetchall()
        except psycopg.Error as error:
            raise _as_of_sqlalchemy(error, connection, driver, sql) from error

    @cached_property
    def _compiled(self) -> _Compiled:
        compiled = self._statement.compile(dialect=PGDialect_psycopg())  # type: ignore[no-untyped-call]
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        return _Compiled(condensed(str(compiled)), constants)


class _Compiled(NamedTuple):
    sql: str
    constants: dict[str, Any]  # parameters that are part of the statement


def _as_of_sqlalchemy(
    error: psycopg.Error, connection: Connection, driver: WatchedConnection, sql: str
) -> BaseException:
    """Return an error of the driver as SQLAlchemy would raise it. If the connection is gone, the pool loses all it has.

    Those that are idle in the pool are most likely gone, too, after a restart of PostgreSQL.
    """
    is_gone = driver.closed
    if is_gone:
        connection.invalidate(error)
        connection.engine.dispose()
    return DBAPIError.instance(sql, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=is_gone)
