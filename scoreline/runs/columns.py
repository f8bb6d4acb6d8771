"""Read the options that name the columns of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.decisions import StateColumns
from scoreline.runs.prompts import Columns, read_filling


def read_columns(
    item_column: str | None,
    query_column: str | None,
    query: str | None,
    templates: Mapping[str, Any],
    label_columns: Sequence[str] = (),
    *,
    scores_empty: bool = False,
) -> Columns:
    """Return where queries and items are. templates: those of query and item, or None. Raises CommandError."""
    if item_column is None:
        raise CommandError("give --item-column, the column of the items, or --questions", ExitCode.USAGE)
    if (query_column is None) == (query is None):
        raise CommandError(
            "give either --query-column, the column of the queries, or --query, one text for all rows", ExitCode.USAGE
        )
    of_query, of_item = (read_filling(templates.get(f"{place}_template"), place) for place in ("query", "item"))
    return Columns(query_column, item_column, query or "", of_query, of_item, tuple(label_columns), scores_empty)


def read_state_columns(column: str | None, columns: str | None, *, scores_empty: bool = False) -> StateColumns:
    """Return where the states are that questions are about. columns: names with commas. Raises CommandError."""
    if (column is None) == (columns is None):
        raise CommandError(
            "give either --state-column, the column that the questions are about, or --state-columns", ExitCode.USAGE
        )
    names = [column] if column is not None else [name.strip() for name in (columns or "").split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise CommandError("--state-columns must be different names with commas between them", ExitCode.USAGE)
    return StateColumns(tuple(names), is_object=column is None, scores_empty=scores_empty)
