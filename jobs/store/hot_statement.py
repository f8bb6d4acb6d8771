"""Statements of PostgreSQL that every call waits for. They are compiled once, and the driver gets them as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy import ClauseElement, Row
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from jobs.store.database import Transaction
from jobs.store.postgresql import condensed


class HotStatement:
    """A statement whose parameters and columns need no conversion by SQLAlchemy, which takes longer with others."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement

    @property
    def text(self) -> str:
        """The statement as the driver gets it."""
        return self._compiled.sql

    def rows(self, tx: Transaction, values: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """Execute the statement, and return all rows."""
        sql, constants = self._compiled
        return tx.connection.exec_driver_sql(sql, {**constants, **values}).all()

    @cached_property
    def _compiled(self) -> _Compiled:
        compiled = self._statement.compile(dialect=PGDialect_psycopg())  # type: ignore[no-untyped-call]
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        return _Compiled(condensed(str(compiled)), constants)


class _Compiled(NamedTuple):
    sql: str
    constants: dict[str, Any]  # parameters that are part of the statement
