"""Results as arrays and tables of NumPy, pandas and Arrow. Each library is imported when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import pyarrow as pa

RANKING_COLUMNS = ("index", "relevance_score", "label_mass", "text")
LIKELIHOOD_COLUMNS = ("logprob", "num_tokens", "is_greedy", "token_logprobs", "tokens")

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
    @property
    def label_mass(self) -> list[float] | None: ...
    @property
    def relevance(self) -> list[float] | None: ...


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


def columns_of_ranking(documents: Sequence[object]) -> Columns:
    """Return the columns of a ranking."""
    columns = {name: [getattr(one, name) for one in documents] for name in RANKING_COLUMNS}
    return {name: column for name, column in columns.items() if name != "text" or any(column)}


def columns_of_likelihoods(result: object) -> Columns:
    """Return the columns of likelihoods."""
    columns = {name: getattr(result, name) for name in LIKELIHOOD_COLUMNS}
    return {name: column for name, column in columns.items() if column is not None}


def columns_of_scores(result: _Scores) -> Columns:
    """Return the columns of scores."""
    rows = result.scores
    others = {"label_mass": result.label_mass, "relevance": result.relevance}
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
