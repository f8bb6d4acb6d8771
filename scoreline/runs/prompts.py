"""What of a row goes into its prompt: its query and its item, and what templates take from other columns."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.formats import Row

Text = str | list[int]
"""A query or an item: a text, or token ids."""

_OF_THE_SERVICE = ("query", "item", "instruction")
"""The places that templates of the service have."""


class EmptyTextError(ValueError):
    """A row has no text where one is wanted."""

    def __init__(self, column: str) -> None:
        super().__init__(f"there is no text in {column!r}")
        self.column = column


@dataclass(frozen=True, slots=True)
class Filling:
    """A template that names columns.

    What stands between its first place and its last one is filled in here for each row, as the text of the row. The
    service gets the rest as its template. It joins both before it makes tokens, so the prompt is as it was written.
    """

    written: str  # by the user
    place: str  # "query" or "item"
    parts: tuple[str, ...]  # places and texts in turn, beginning and ending with a place
    sent: str  # the template for the service

    @property
    def columns(self) -> list[str]:
        """The columns that it names."""
        return [part.removeprefix(_COLUMN) for part in self.parts[::2] if part.startswith(_COLUMN)]

    def filled(self, values: dict[str, str]) -> str:
        """Return the text of a row. values: what stands at the places."""
        return "".join(part if n % 2 else values[part] for n, part in enumerate(self.parts))


_COLUMN = "column:"


def read_filling(written: str | None, place: str) -> Filling | None:
    """Return a template that names columns, or None if it names none. Raises CommandError.

    place: "query" or "item": what must stand in it, once.
    """
    head, *parts = re.split(rf"\{{({place}|{_COLUMN}[^{{}}]+)\}}", written or "")
    if written is None or not any(part.startswith(_COLUMN) for part in parts[::2]):
        return None
    *parts, tail = parts
    option = f"--{place}-template"
    if parts[::2].count(place) != 1:
        raise CommandError(
            f"{option} must have {{{place}}} once, and has it {parts[::2].count(place)} times", ExitCode.USAGE
        )
    for text in parts[1::2]:
        for other in _OF_THE_SERVICE:
            if f"{{{other}}}" in text:
                message = f"{option} has {{{other}}} between the places of columns, where it can't be filled in"
                raise CommandError(message, ExitCode.USAGE)
    return Filling(written, place, tuple(parts), f"{head}{{{place}}}{tail}")


def check_template(option: str, written: str | None, file: str, columns: Collection[str]) -> None:
    """Raise CommandError if a column stands in a template, or an instruction, as the service's places do."""
    for name in re.findall(r"\{([^{}]+)\}", written or ""):
        if name in columns and name not in _OF_THE_SERVICE:
            where = " in --query-template or --item-template" if option == "--instruction" else ""
            message = f"write {{{_COLUMN}{name}}}{where} for what each row has there"
            raise CommandError(f"{option} has {{{name}}}, and {file} has a column {name!r}: {message}", ExitCode.USAGE)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the query and the item of a row are."""

    query: str | None  # the column of the queries; None: all rows have ``same_query``
    item: str
    same_query: str = ""
    query_filling: Filling | None = None
    item_filling: Filling | None = None
    labels: tuple[str, ...] = ()  # the columns of the labels; empty: all rows have the same labels
    scores_empty: bool = False  # whether a text that is empty is scored like any other

    @property
    def fillings(self) -> list[Filling]:
        """The templates that name columns."""
        return [filling for filling in (self.query_filling, self.item_filling) if filling is not None]

    @property
    def named(self) -> list[tuple[str, str]]:
        """All columns that must be there, each with the option that names it."""
        return [
            *([] if self.query is None else [(self.query, "--query-column")]),
            (self.item, "--item-column"),
            *((column, "--label-column") for column in self.labels),
            *((column, f"--{filling.place}-template") for filling in self.fillings for column in filling.columns),
        ]

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be the same when the run is resumed, by words for a message."""
        return {
            "query column": self.query,
            **({"query": self.same_query} if self.query is None else {}),
            "item column": self.item,
            **({"column of labels": list(self.labels)} if self.labels else {}),
            **{f"{filling.place} template": filling.written for filling in self.fillings},
        }

    def texts(self, row: Row) -> tuple[Text, Text]:
        """Return the query and the item of a row. Raises ValueError, and EmptyTextError for one without text."""
        query = self.same_query if self.query is None else self._text(row, self.query)
        item = self._text(row, self.item)
        return self._filled(self.query_filling, query, row), self._filled(self.item_filling, item, row)

    def labels_of(self, row: Row) -> list[str]:
        """Return the labels that a row itself has. Raises ValueError, and EmptyTextError if it has none."""
        labels = [label for column in self.labels for label in _labels(row.get(column), column)]
        if self.labels and not labels:
            raise EmptyTextError(self.labels[0])
        return labels

    def _filled(self, filling: Filling | None, own: Text, row: Row) -> Text:
        if filling is None:
            return own
        if not isinstance(own, str):
            raise ValueError(f"its {filling.place} has token ids, which no template takes")
        values = {filling.place: own}
        for column in filling.columns:
            value = row.get(column)
            text = str(value) if isinstance(value, int | float) else self._text(row, column)
            if not isinstance(text, str):
                raise ValueError(f"its {column!r} is no text, as --{filling.place}-template wants it")
            values[_COLUMN + column] = text
        return filling.filled(values)

    def _text(self, row: Row, column: str) -> Text:
        value: Any = row.get(column)
        if value is None:
            value = ""
        if type(value) in (int, float):
            raise ValueError(f"its {column!r} is a number: make it a text")
        if not isinstance(value, str) and not (isinstance(value, list) and all(type(token) is int for token in value)):
            raise ValueError(f"its {column!r} is neither a text nor a list of token ids")
        if not self.scores_empty and not (value.strip() if isinstance(value, str) else value):
            raise EmptyTextError(column)
        return value


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


def _labels(value: Any, column: str) -> list[str]:
    """Return the labels of a cell: a text is one, and a list, also as JSON, has several. Blank ones do not count."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            value = json.loads(value)
    found = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(label, str) for label in found):
        raise ValueError(f"its {column!r} is neither a label nor a list of labels")
    return [label for label in found if label.strip()]
