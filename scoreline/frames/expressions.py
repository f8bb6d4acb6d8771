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
    returned = pl.from_arrow(function.fields.empty_table())
    assert isinstance(returned, pl.DataFrame)

    def compute(columns: Any) -> pl.Series:
        longest = max(map(len, columns))
        arrays = [
            (one.extend_constant(one[0], longest - 1) if len(one) < longest else one).to_arrow() for one in columns
        ]
        return pl.Series(columns[-1].name, pl.from_arrow(function(*arrays)))

    return pl.map_batches(inputs, compute, return_dtype=pl.Struct(dict(returned.schema)), is_elementwise=False)
