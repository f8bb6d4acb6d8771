"""Inserting rows that another transaction may be inserting at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, Select, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.sql.dml import ReturningInsert

from jobs.store.database import Transaction


def insert(table: Table) -> Insert:
    """An INSERT that may have an ON CONFLICT clause, for both databases.

    SQLite has PostgreSQL's clause, and SQLAlchemy compiles PostgreSQL's INSERT for SQLite as well, so that one
    statement can be a constant.
    """
    return postgresql.insert(table)


def insert_if_new(table: Table) -> Insert:
    """An INSERT that does nothing where a row with the same key exists."""
    return insert(table).on_conflict_do_nothing()


def get_or_create(
    tx: Transaction,
    find: Select[Any],
    create: ReturningInsert[Any],
    values: Mapping[str, Any],
    *,
    likely_exists: bool = True,
) -> Row[Any]:
    """Return the row that ``find`` selects, inserting it with ``create`` where there is none.

    create: an :func:`insert_if_new` that returns the columns of ``find``; values: the parameters of both statements;
    likely_exists: whether to look for the row before the first attempt to insert it.
    """
    row: Row[Any] | None = tx.execute(find, values).one_or_none() if likely_exists else None
    while row is None:  # Another transaction may insert the row after `find`, or delete it after `create`.
        row = tx.execute(create, values).one_or_none() or tx.execute(find, values).one_or_none()
    return row
