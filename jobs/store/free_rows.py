"""Rows that no other transaction has locked. So processes that work on the same table never wait for each other."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Row, delete, select, tuple_

from jobs.store.database import Transaction

ROWS_PER_STEP = 500


def free_rows(
    tx: Transaction,
    columns: tuple[Column[Any], ...],
    *which: ColumnElement[bool],
    limit: int | None = None,
    order_by: ColumnElement[Any] | None = None,
) -> list[Row[Any]]:
    """Lock some rows that are free, and return columns of them. limit: how many at most; None: ROWS_PER_STEP."""
    wanted = select(*columns).where(*which).order_by(order_by).limit(limit or ROWS_PER_STEP)
    return list(tx.execute(wanted.with_for_update(skip_locked=True)))


def remove_free_rows(tx: Transaction, key: tuple[Column[Any], ...], *which: ColumnElement[bool]) -> int:
    """Remove some rows that are free. key: the columns of their primary key. Return how many."""
    rows = free_rows(tx, key, *which)
    if rows:
        tx.execute(delete(key[0].table).where(tuple_(*key).in_([tuple(row) for row in rows])))
    return len(rows)
