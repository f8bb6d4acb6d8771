"""Results as tables of pandas and Arrow. Each library is imported when it is asked for."""

from __future__ import annotations

import html
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

HTML_ROWS, HTML_COLUMNS = 10, 20
"""How much of a table a notebook shows."""

Columns = Mapping[str | int, Sequence[object]]
"""The columns of a table by their names."""

Values = Literal["scores", "logprobs", "logits"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client remembers of a request, because the answer does not say it."""

    labels: tuple[str | int, ...] | None = None  # the names of the columns of its scores
    index: pd.Index | None = None  # of the pandas column that its items came from


NOTHING_ASKED = Asked()
"""What a client knows of a request that it did not send itself."""


def index_of(items: Any) -> pd.Index | None:
    """Return the index of a column of pandas, by which a table of results can be joined to its table.

    Other libraries and lists have none: their order alone says which result belongs to which item.
    """
    return items.index if hasattr(items, "iloc") else None


class Short:
    """Shows a result of any size on a screen: what is missing is left out, and of what is long only the beginning."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the result as text."""
        shown = {one.name: getattr(self, one.name) for one in fields(self) if one.repr}  # type: ignore[arg-type]
        written = [f"{name}={_SHORT.repr(value)}" for name, value in shown.items() if value is not None]
        return f"{type(self).__name__}({', '.join(written)})"


class _Shortened(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlist, self.maxtuple, self.maxdict, self.maxlevel = 3, 4, 4, 4
        self.maxstring, self.maxother = 120, 1_000

    def repr_list(self, value: list[Any], level: int) -> str:
        """Return a list as text, with the number of what is left out."""
        more = len(value) - self.maxlist
        shown = [self.repr1(one, level - 1) for one in value[: self.maxlist]]
        return f"[{', '.join([*shown, f'... {more} more'] if more > 0 else shown)}]"

    def repr_float(self, value: float, _: int) -> str:
        """Return a number as text."""
        return f"{value:.4g}"


_SHORT = _Shortened()


class Tabular(Short):
    """A result as a table, with a row for each item."""

    __slots__ = ()
    row_index: pd.Index | None

    def _columns(self) -> Columns:
        raise NotImplementedError

    def _index(self) -> pd.Index | None:
        """Return the index of the rows; None: they are numbered from 0."""
        return self.row_index

    def _to_pandas(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(dict(self._columns()), index=self._index())

    def _to_arrow(self) -> pa.Table:
        import pyarrow as pa

        return pa.table({str(name): column for name, column in self._columns().items()})

    def _repr_html_(self) -> str:
        """Return the beginning of the table as HTML, for notebooks."""
        columns, index = self._columns(), self._index()
        count, names = max(map(len, columns.values()), default=0), list(columns)[:HTML_COLUMNS]
        rows = [[str(n) if index is None else str(index[n])] for n in range(min(count, HTML_ROWS))]
        for n, row in enumerate(rows):
            row += [_SHORT.repr(columns[name][n]) for name in names]
        head = "".join(f"<th>{html.escape(str(name))}</th>" for name in ("", *names))
        body = "".join(f"<tr><th>{html.escape(row[0])}</th>{_cells(row[1:])}</tr>" for row in rows)
        left_out = [f"{count - len(rows)} more rows"] if count > len(rows) else []
        left_out += [f"{len(columns) - len(names)} more columns"] if len(columns) > len(names) else []
        kind, rest = type(self).__name__, f": {', '.join(left_out)} not shown" if left_out else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{kind}{rest}</p>"


def _cells(values: Sequence[str]) -> str:
    return "".join(f"<td>{html.escape(value)}</td>" for value in values)
