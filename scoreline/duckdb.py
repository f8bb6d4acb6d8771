"""Functions of DuckDB that score the rows of a query. They need ``pip install "scoreline[frames]" duckdb``.

>>> import duckdb
>>> import scoreline.duckdb
>>> con = duckdb.connect()
>>> scoreline.duckdb.register(
...     con, "sentiment", query="Review: ", item_template="{item}\\nSentiment:", labels=[" positive", " negative"]
... )
>>> con.sql("SELECT sentiment('A lovely room.').positive > 0.5").fetchall()
[(True,)]
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scoreline.frames.functions import Function
from scoreline.frames.tables import check_cases
from scoreline.runs.formats import Kind

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_TYPES = {Kind.NUMBER: "DOUBLE", Kind.TEXT: "VARCHAR"}


def register(connection: DuckDBPyConnection, name: str, **asked: Any) -> Function:
    """Make a function of SQL that returns a struct, with a field for each label or question of each row.

    asked: as for :func:`scoreline.frames.asking`, without the names of columns. With ``questions`` the function takes
    a state: ``triage(body)``; with labels, or a template, ``query`` is the query of all rows, and the function takes an
    item: ``sentiment(review)``; without ``query`` it takes both: ``relevance(query, document)``. A null gives a
    struct of nulls. A function of this name that was registered before is replaced. What ``max_items`` and
    ``max_tokens`` allow is for all queries together, until it is.

    DuckDB hands over some 2,000 rows at a time: the rows of a query are computed together if they stand side by side,
    as after ``ORDER BY query``. It does not tell a function that its query was interrupted: ``cancel()`` of what this
    returns ends the query, from another thread, and cancels its jobs. Ctrl-C does so, too, after ``SET threads = 1``.

    Raises TableError and ScorelineError.
    """
    import duckdb

    function = Function(asked)
    check_cases("DuckDB", [*function.kinds])  # It would give the value of the first one for both.

    # DuckDB evaluates the annotations of these.
    def of_one(column: Any) -> Any:
        return function(column)

    def of_two(queries: Any, items: Any) -> Any:
        return function(queries, items)

    with suppress(duckdb.InvalidInputException):  # There is none of this name.
        connection.remove_function(name)
    connection.create_function(
        name,
        of_one if len(function.parameters) == 1 else of_two,  # DuckDB counts the parameters.
        ["VARCHAR"] * len(function.parameters),
        connection.struct_type({name: _TYPES[kind] for name, kind in function.kinds.items()}),
        type="arrow",
        null_handling="special",
    )
    return function
