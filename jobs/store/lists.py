"""Several values as one parameter, so that a statement has the same text however many there are.

A database prepares each text anew. So a list that is written out in the text makes statements of many lengths slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import JSON, Boolean, Column, Dialect, LargeBinary, Text, bindparam
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeDecorator, TypeEngine

FROM_HEX = "from_hex"
"""A function that connections to SQLite have: bytes from hexadecimal digits, since JSON has no bytes."""


def is_one_of(column: Column[Any], name: str) -> FunctionElement[bool]:
    """Return the condition that a column has one of the values of the parameter ``name``, an iterable."""
    values = bindparam(name, type_=_List(type(column.type)))
    return (_BytesAreOneOf if isinstance(column.type, LargeBinary) else _IsOneOf)(column, values)


class _List(TypeDecorator[Iterable[Any]]):
    """An array for PostgreSQL, JSON for SQLite."""

    impl = Text
    cache_ok = True

    def __init__(self, of: type[TypeEngine[Any]]) -> None:
        super().__init__()
        self.of = of

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(ARRAY(self.of()) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Iterable[Any] | None, dialect: Dialect) -> Any:
        values = list(value or ())
        return values if dialect.name == "postgresql" else json.dumps(values, default=bytes.hex)


class _IsOneOf(FunctionElement[bool]):
    inherit_cache = True
    type = Boolean()

    def self_group(self, against: Any = None) -> Any:
        return self  # SQLAlchemy would compare it with 1 for SQLite, and then no index is used


class _BytesAreOneOf(_IsOneOf):
    inherit_cache = True


@compiles(_IsOneOf, "postgresql")
def _compile_for_postgresql(element: _IsOneOf, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{column} = ANY ({values})"


@compiles(_IsOneOf, "sqlite")
def _compile_for_sqlite(element: _IsOneOf, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({values}))"


@compiles(_BytesAreOneOf, "sqlite")
def _compile_bytes_for_sqlite(element: _BytesAreOneOf, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{column} IN (SELECT {FROM_HEX}(value) FROM json_each({values}))"


def numbers_by_name(parameter: str) -> TableValuedAlias:
    """Return a table with the columns ``key`` and ``value``, of a parameter that is a mapping of names to numbers."""
    return _JsonEach(bindparam(parameter, type_=JSON)).table_valued("key", "value")


class _JsonEach(FunctionElement[Any]):
    inherit_cache = True


@compiles(_JsonEach)
def _compile_json_each(element: _JsonEach, compiler: SQLCompiler, **options: Any) -> str:
    name = "json_each_text" if compiler.dialect.name == "postgresql" else "json_each"
    return f"{name}({compiler.process(element.clauses, **options)})"
