"""Results as arrays and tables of NumPy, pandas and Arrow. Each library is imported when it is asked for."""

from __future__ import annotations

import html
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import pyarrow as pa

RANKING_COLUMNS = ("index", "relevance_score", "label_mass", "calibrated", "action", "label_set", "text")
SCORE_COLUMNS = ("label_mass", "relevance", "adjusted", "calibrated", "action", "label_set")
LIKELIHOOD_COLUMNS = ("logprob", "num_tokens", "is_greedy", "token_logprobs", "tokens")

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


class _Scores(Protocol):
    """A result with scores."""

    @property
    def scores(self) -> list[list[float]]: ...
    @property
    def labels(self) -> tuple[str | int, ...] | None: ...


def to_numpy(result: _Scores, values: Values) -> npt.NDArray[np.float64]:
    """Return scores as an array, [items, labels]. Raises ValueError if they are not there, or ragged."""
    import numpy as np

    rows = _rows(result, values)
    if len({len(row) for row in rows}) > 1:
        raise ValueError("items have different numbers of labels, so their scores are no array; to_arrow() has lists")
    width = len(rows[0]) if rows else len(result.labels or ())
    return np.array(rows, dtype=np.float64).reshape(len(rows), width)


def to_pandas(columns: Columns, index: pd.Index | None) -> pd.DataFrame:
    """Return a table of columns. index: of its rows; None: they are numbered from 0."""
    import pandas as pd

    return pd.DataFrame(dict(columns), index=index)


def to_arrow(columns: Columns) -> pa.Table:
    """Return a table of columns."""
    import pyarrow as pa

    return pa.table({str(name): column for name, column in columns.items()})


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


def to_html(result: object, columns: Columns, index: pd.Index | None, count: int) -> str:
    """Return the beginning of a table as HTML, for notebooks. count: of all rows."""
    names = list(columns)[:HTML_COLUMNS]
    rows = [[str(n) if index is None else str(index[n])] for n in range(min(count, HTML_ROWS))]
    for n, row in enumerate(rows):
        row += [_SHORT.repr(columns[name][n]) for name in names]
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in ("", *names))
    body = "".join(f"<tr><th>{html.escape(row[0])}</th>{_cells(row[1:])}</tr>" for row in rows)
    left_out = [f"{count - len(rows)} more rows"] if count > len(rows) else []
    left_out += [f"{len(columns) - len(names)} more columns"] if len(columns) > len(names) else []
    kind, rest = type(result).__name__, f": {', '.join(left_out)} not shown" if left_out else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{kind}{rest}</p>"


def _cells(values: Sequence[str]) -> str:
    return "".join(f"<td>{html.escape(value)}</td>" for value in values)


def columns_of_ranking(documents: Sequence[object]) -> Columns:
    """Return the columns of a ranking."""
    columns = {name: [getattr(one, name) for one in documents] for name in RANKING_COLUMNS}
    # A model with classes has no label mass, and what follows is returned on demand.
    absent = [name for name in RANKING_COLUMNS[2:] if all(one is None for one in columns[name])]
    return {name: column for name, column in columns.items() if name not in absent}


def columns_of_likelihoods(result: object) -> Columns:
    """Return the columns of likelihoods."""
    columns = {name: getattr(result, name) for name in LIKELIHOOD_COLUMNS}
    return {name: column for name, column in columns.items() if column is not None}


def columns_of_scores(result: _Scores) -> Columns:
    """Return the columns of scores."""
    rows = result.scores
    others = {name: getattr(result, name) for name in SCORE_COLUMNS}
    named: Columns = {name: column for name, column in others.items() if column is not None}
    if len({len(row) for row in rows}) > 1:
        return {"scores": rows, **named}
    width = len(rows[0]) if rows else len(result.labels or ())
    labels = result.labels if result.labels is not None and len(result.labels) == width else range(width)
    return {**{label: [row[place] for row in rows] for place, label in enumerate(labels)}, **named}


def _rows(result: _Scores, values: Values) -> list[list[float]]:
    rows = getattr(result, values)
    if rows is None:
        raise ValueError(f"there are no {values}: ask for them with return_{values}=True")
    return [[-math.inf if value is None else value for value in row] for row in rows]
