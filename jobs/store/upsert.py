"""Inserting rows that another transaction may be inserting at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Select, Table, bindparam, tuple_
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.sql.dml import ReturningInsert

from jobs.store.database import Transaction

Key = TypeVar("Key", bound=tuple[Any, ...])


def insert(table: Table) -> Insert:
    """An INSERT that may have an ON CONFLICT clause, for both databases.

    SQLite has PostgreSQL's clause, and SQLAlchemy compiles PostgreSQL's INSERT for SQLite as well, so that one
    statement can be a constant.
    """
    return postgresql.insert(table)


def insert_if_new(table: Table) -> Insert:
    """An INSERT that does nothing where a row with the same key exists."""
    return insert(table).on_conflict_do_nothing()


class FindByKey:
    """A query for rows by a key of several columns, which every database answers by the index of the key.

    It has a form for one row, because the others take longer to build, and forms for several rows for each database. To
    compare tuples, SQLite would read the whole table. With a condition for each column, PostgreSQL might do so.
    """

    def __init__(self, query: Select[Any], key: Sequence[ColumnElement[Any]]) -> None:
        """query: returns the columns of the key first, and has no condition."""
        self._names = [str(column.key) for column in key]
        self._one = query.where(*(column == bindparam(column.key) for column in key))
        self._by_columns = query.where(*(column.in_(bindparam(column.key, expanding=True)) for column in key))
        self._by_tuples = query.where(tuple_(*key).in_(bindparam("keys", expanding=True)))

    def rows(self, tx: Transaction, keys: Sequence[Key]) -> dict[Key, Row[Any]]:
        """Return the rows with these keys, at least one, as far as there are any."""
        if len(keys) == 1:
            found = tx.execute(self._one, dict(zip(self._names, keys[0], strict=True)))
        elif tx.is_sqlite:
            columns = [sorted(set(column)) for column in zip(*keys, strict=True)]
            found = tx.execute(self._by_columns, dict(zip(self._names, columns, strict=True)))
        else:
            found = tx.execute(self._by_tuples, {"keys": keys})
        by_key = {self.key_of(row): row for row in found}
        return {key: by_key[key] for key in keys if key in by_key}

    def key_of(self, row: Row[Any]) -> Any:
        """Return the key of a row."""
        return tuple(row[: len(self._names)])


def get_or_create_all(
    tx: Transaction, find: FindByKey, create: ReturningInsert[Any], wanted: Mapping[Key, Mapping[str, Any]]
) -> dict[Key, Row[Any]]:
    """Return the rows with the wanted keys, inserting those that are missing.

    They are inserted in the order of their keys, so that two transactions can't wait for each other.
    create: an :func:`insert_if_new` that returns the columns of ``find``; wanted: the values of the rows by their keys.
    """
    found: dict[Key, Row[Any]] = {}
    missing = list(wanted)
    while missing:  # Another transaction may insert a row after `find`, or delete it after `create`.
        found |= find.rows(tx, missing)
        missing = sorted(wanted.keys() - found.keys())
        if missing:
            found |= {find.key_of(row): row for row in tx.execute(create, [wanted[key] for key in missing])}
            missing = [key for key in missing if key not in found]
    return {key: found[key] for key in wanted}
