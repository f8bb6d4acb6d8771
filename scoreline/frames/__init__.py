"""Score the rows of tables: of Arrow, pandas and Polars, and of all that gives Arrow's stream, such as DuckDB.

``score``, ``rerank`` and ``decide`` return the table with new columns, in the order of its rows. A lazy frame of Polars
is scored when it is collected, and a stream as it is read, both in bounded memory. It needs ``pip install
"scoreline[frames]"``.

>>> import polars as pl
>>> from scoreline import frames
>>> reviews = pl.DataFrame({"review": ["A lovely room.", "The soup was cold."]})
>>> found = frames.score(
...     reviews, "review", query="Review: ", item_template="{item}\\nSentiment:", labels=[" positive", " negative"]
... )
>>> found.columns
['review', 'positive', 'negative', 'label_mass']
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

from scoreline.client.decisions import Questions
from scoreline.client.options import Permute, PromptOptions
from scoreline.frames.asked import Asking, ItemOptions, TableOptions, asking, deciding, ranking, scoring
from scoreline.frames.costs import Cost
from scoreline.frames.errors import CostError, TableError
from scoreline.frames.tables import check_columns, table_of, with_columns

__all__ = ["Asking", "Cost", "CostError", "TableError", "asking", "cost", "decide", "rerank", "score"]

F = TypeVar("F", bound=Callable[..., Any])


def _explains(*kinds: type) -> Callable[[F], F]:
    """Have the help of a function explain its options, as the docstrings of their kinds do."""

    def explained(function: F) -> F:
        paragraphs = [inspect.getdoc(kind).partition("\n\n")[2] for kind in kinds]  # type: ignore[union-attr]
        function.__doc__ = "\n\n".join([inspect.getdoc(function) or "", *paragraphs])
        return function

    return explained


@_explains(ItemOptions, PromptOptions, TableOptions)
def score(
    table: Any,
    item_column: str,
    *,
    query_column: str | None = None,
    query: str | None = None,
    labels: Sequence[str] = (),
    label_columns: Sequence[str] = (),
    output: str | os.PathLike[str] | None = None,
    restart: bool = False,
    **options: Unpack[ItemOptions],
) -> Any:
    """Return a table with a column more for each label, which has its probability, and one for the label mass.

    query_column, query: where the query of a row is, or the one of all rows. labels: none for a ``template`` that has
    some, or for a model with classes. label_columns: those with the labels of each row, which is a label or a list.
    output: a Parquet file that is written meanwhile. If the process ends before it is complete, the same call goes on
    where it was; restart: it begins again. A file that is complete is an error, unless restart is True.

    Raises TableError, CostError, ScorelineError and TypeError.
    """
    asked = scoring(
        item_column, query_column=query_column, query=query, labels=labels, label_columns=label_columns, **options
    )
    return with_columns(table, asked, output, restart=restart)


@_explains(ItemOptions, PromptOptions, TableOptions)
def rerank(
    table: Any,
    document_column: str,
    *,
    query_column: str | None = None,
    query: str | None = None,
    output: str | os.PathLike[str] | None = None,
    restart: bool = False,
    **options: Unpack[ItemOptions],
) -> Any:
    """Return a table with a column ``relevance``: how relevant the document of each row is to its query.

    The order of the rows stays: sort by it, or rank with what the table's library has for that. The template of the
    service's model says what relevance is, unless ``template`` names another one. The rest is as for :func:`score`.
    """
    asked = ranking(document_column, query_column=query_column, query=query, **options)
    return with_columns(table, asked, output, restart=restart)


@_explains(TableOptions)
def decide(
    table: Any,
    questions: Questions | str | os.PathLike[str],
    *,
    state_column: str | None = None,
    state_columns: Sequence[str] | None = None,
    permute: Permute | None = None,
    output: str | os.PathLike[str] | None = None,
    restart: bool = False,
    **options: Unpack[TableOptions],
) -> Any:
    """Return a table with the answers to questions about the state of each row.

    A question NAME adds a column of that name, and, unless it is one of yes or no, another one of how sure the answer
    is, NAME_confidence. questions: as those of :meth:`Client.decide`, or a file with them as JSON. state_column,
    state_columns: what the questions are about: a column, or an object with several. The rest is as for :func:`score`.
    """
    asked = deciding(questions, state_column=state_column, state_columns=state_columns, permute=permute, **options)
    return with_columns(table, asked, output, restart=restart)


def cost(table: Any, **asked: Any) -> Cost:
    """Return what scoring the rows of a table would take. Nothing is scored: the service only counts.

    asked: the arguments of :func:`score`, :func:`rerank` or :func:`decide`, by their names. See :func:`asking`.
    """
    found = table_of(table)
    wanted = asking(**asked)
    check_columns(wanted, found.columns)
    return found.cost(wanted)
