"""The work of computing a stored prefix, in SQL: there may be many prefixes, and only their lengths are read."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Float, ScalarSelect, case, cast, func, select

from jobs.store.codec import TOKEN_BYTES
from jobs.store.tables import prefixes
from scoring.planning.folds import ATTENTION_TOKENS
from scoring.work import SHORTEST_SHARED

_LENGTH = cast(func.length(prefixes.c.tokens), Float) / TOKEN_BYTES
_WORK = case((_LENGTH < SHORTEST_SHARED, 0.0), else_=func.round(_LENGTH * (1 + _LENGTH / (2 * ATTENTION_TOKENS))))


def prefix_work(prefix_id: ColumnElement[int]) -> ScalarSelect[float]:
    """Return what :func:`scoring.work.work_of_prefix` returns for a stored prefix.

    It is a subquery, because PostgreSQL may answer a join by reading the tokens of all prefixes that are stored.
    """
    return select(_WORK).where(prefixes.c.id == prefix_id).scalar_subquery()
