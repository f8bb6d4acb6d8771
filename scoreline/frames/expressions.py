"""An expression of Polars whose values are scores."""

from __future__ import annotations

from typing import Any

import polars as pl

from scoreline.frames.functions import Function


def scores_of(what: pl.Expr, query: pl.Expr | str | None = None, **asked: Any) -> pl.Expr:
    """Return an expression whose values are structs of scores, or of answers: ``.struct.unnest()`` makes columns of it.

    what: the items, or the states that ``questions`` are about. query: that of each item, or a text for all.
    asked: see :func:`scoreline.frames.asking`. Polars computes the whole column at once: for tables that are larger
    than the memory, use :func:`scoreline.frames.score` with a lazy frame.

    The service is asked for its model and templates at once. Raises TableError and ScorelineError.
    """
    of_all = {"query": query} if isinstance(query, str) else {}
    function = Function({**asked, **of_all})
    inputs = [query, what] if isinstance(query, pl.Expr) else [what]
    empty = pl.from_arrow(function.fields.empty_table())
    assert isinstance(empty, pl.DataFrame)
    returned = pl.Struct(dict(empty.schema))

    def compute(columns: Any) -> pl.Series:
        name, rows = columns[-1].name, max(map(len, columns))
        if not all(map(len, columns)):
            return pl.Series(name, [], returned)
        # A constant is a column of one row.
        whole = [one if len(one) == rows else one.new_from_index(0, rows) for one in columns]
        return pl.Series(name, pl.from_arrow(function(*(one.to_arrow() for one in whole))))

    return pl.map_batches(inputs, compute, return_dtype=returned, is_elementwise=False)
