"""The database's clock: the only one that times in the store are taken from."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Float, or_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

UNIX_SECONDS = {
    "sqlite": "(SELECT (julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "(SELECT extract(epoch from clock_timestamp())::double precision)",
}
"""The current time in the SQL of each dialect.

It is a subquery because that is evaluated once per statement: PostgreSQL uses no index for a comparison with a bare
volatile function.
"""


class _DatabaseNow(FunctionElement[float]):
    """The current time of the database as an SQL expression, the same object for every dialect.

    It is a FunctionElement because SQLAlchemy gives a plain ColumnElement no cache key: every statement with one would
    be compiled anew whenever it is sent.
    """

    inherit_cache = True
    type = Float(53)


@compiles(_DatabaseNow)
def _compile_now(_element: _DatabaseNow, compiler: SQLCompiler, **_options: Any) -> str:
    return UNIX_SECONDS[compiler.dialect.name]


NOW: ColumnElement[float] = _DatabaseNow()
"""Unix seconds when the statement runs, as an SQL expression. A statement that uses it can be a constant."""


def is_to_come(time: Column[float]) -> ColumnElement[bool]:
    """Return the SQL condition that a time has not come yet, or never comes."""
    return or_(time.is_(None), time > NOW)
