"""The work of computing a stored prefix, as an SQL expression."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Integer, ScalarSelect, func, select

from jobs.store.codec import TOKEN_BYTES
from jobs.store.tables import prefixes


def prefix_work(prefix_id: ColumnElement[int]) -> ScalarSelect[int]:
    """Return what :func:`scoring.work.work_of_prefix` said of a prefix when it was stored.

    It is a subquery, because PostgreSQL may answer a join by reading the tokens of all prefixes that are stored.
    """
    # Version 0.2.0 stores no work during an upgrade. Such a prefix counts as its tokens, whose number is read alone.
    work = func.coalesce(prefixes.c.work, func.length(prefixes.c.tokens, type_=Integer) // TOKEN_BYTES)
    return select(work).where(prefixes.c.id == prefix_id).scalar_subquery()
