"""What is asked, as a function of columns: for the SQL of an engine, and for expressions of Polars."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from scoreline.frames.asked import asking
from scoreline.frames.costs import Cost
from scoreline.frames.streams import Calls, served
from scoreline.frames.tables import check_columns, new_of_whole, schema_of, table_of
from scoreline.runs.formats import Kind

STATE, ITEM, QUERY = "state", "item", "query"
"""The names of the parameters."""


class Function:
    """A function of one column, or of queries and items. A null, and a blank text, gives a struct of nulls.

    What ``max_items`` and ``max_tokens`` allow holds for all calls together, as long as there is this function.
    """

    def __init__(self, asked: Mapping[str, Any]) -> None:
        """asked: as for :func:`scoreline.frames.asking`, without the names of columns. Without ``query``, items have a
        query each. Raises TableError and ScorelineError.
        """
        if columns := [name for name in asked if name.endswith(("_column", "_columns"))]:
            raise TypeError(f"a function is called with its columns: leave out {columns[0]}")
        self.parameters: tuple[str, ...] = (ITEM,)
        if "questions" in asked:
            self.parameters, named = (STATE,), {"state_column": STATE}
        else:
            named = {"item_column": ITEM}
            if asked.get("query") is None:
                self.parameters, named = (QUERY, ITEM), {**named, "query_column": QUERY}
        wanted = asking(**{"empty": "skip", **asked, **named})
        check_columns(wanted, list(self.parameters))
        models = served(wanted)
        self._asking = wanted.of_served(models)
        self._new = self._asking.columns(models, ())
        # What is wrong with templates and labels is said at once, and not in the middle of a query.
        table_of(pa.table({name: ["a text"] for name in self.parameters})).cost(self._asking)
        self._left = (self._asking.max_items, self._asking.max_tokens)
        self._lock = threading.Lock()
        self._calls = Calls()

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The kinds of the fields of what the function returns of each row."""
        return self._new

    @property
    def fields(self) -> pa.Schema:
        """What the function returns of each row."""
        return schema_of(self._new)

    def __call__(self, *columns: Any) -> pa.StructArray:
        """Return what comes of some rows. columns: arrays of Arrow, one for each parameter."""
        arrays = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
        table = table_of(pa.table(dict(zip(self.parameters, arrays, strict=True))))
        if self._left != (None, None):
            self._spend(table.cost(self._asking, tokens=self._left[1] is not None))
        found = new_of_whole(table, self._asking, self._new, self._calls).combine_chunks()
        return pa.StructArray.from_arrays([column.combine_chunks() for column in found.columns], fields=[*self.fields])

    def cancel(self) -> None:
        """Have the calls that are under way end with a TableError, and their jobs be cancelled."""
        self._calls.cancel()

    def _spend(self, cost: Cost) -> None:
        with self._lock:
            items, tokens = self._left
            cost.check(items, tokens)
            left_tokens = None if tokens is None else tokens - (cost.prompt_tokens or 0)
            self._left = (None if items is None else items - cost.items, left_tokens)
