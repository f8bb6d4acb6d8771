"""Group the rows of a file by their query, a window of rows at a time.

A window is as much of the file as is kept in memory. Within it, all items of a query go to the service together, so
that the query is computed once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from scoreline.runs.formats import Row
from scoreline.runs.reading import Source

Text = str | list[int]
"""A query or an item: a text, or token ids."""

MAX_ITEMS = 1_000
"""Items of a group. The answer about a job with more of them would not contain its scores."""

MAX_GROUP_CHARACTERS = 4 * 1024 * 1024
"""Characters of the items of a group, by which it stays below the limits of a request."""


@dataclass(frozen=True, slots=True)
class WindowSize:
    """How much of a file is kept in memory at a time, at most."""

    rows: int
    characters: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the query and the item of a row are."""

    query: str | None  # the column of the queries; None: all rows have ``same_query``
    item: str
    same_query: str = ""


@dataclass(slots=True)
class Group:
    """Rows of a window that have the same query."""

    query: Text
    rows: list[int] = field(default_factory=list)  # their places in the window
    items: list[Text] = field(default_factory=list)
    characters: int = 0

    @property
    def is_full(self) -> bool:
        """Whether another row of this query begins another group."""
        return len(self.items) >= MAX_ITEMS or self.characters >= MAX_GROUP_CHARACTERS


@dataclass(slots=True)
class Window:
    """Some rows of a file that follow one another."""

    number: int  # counted from 0
    rows: list[Row]
    numbers: list[int]  # of the rows in the file
    digest: str  # of these rows and of all before them
    share_read: float | None  # how much of the file is read with it

    def groups(self, columns: Columns) -> tuple[list[Group], dict[int, str]]:
        """Return the rows by their query, and what is wrong with the rows that can't be scored."""
        groups: dict[str, Group] = {}
        done: list[Group] = []
        wrong: dict[int, str] = {}
        for place, row in enumerate(self.rows):
            try:
                query = columns.same_query if columns.query is None else _text(row, columns.query)
                item = _text(row, columns.item)
            except ValueError as error:
                wrong[place] = str(error)
                continue
            key = query if isinstance(query, str) else json.dumps(query)
            group = groups.setdefault(key, Group(query))
            group.rows.append(place)
            group.items.append(item)
            group.characters += len(item)
            if group.is_full:
                done.append(groups.pop(key))
        return [*done, *groups.values()], wrong


def read_windows(source: Source, size: WindowSize) -> Iterator[Window]:
    """Yield the rows of a file in windows. Raises CommandError."""
    digest = hashlib.blake2b(digest_size=16)
    rows: list[Row] = []
    numbers: list[int] = []
    characters = count = 0
    for number, row in source:
        text = json.dumps(row, default=str)
        digest.update(text.encode() + b"\n")
        rows.append(row)
        numbers.append(number)
        characters += len(text)
        if len(rows) >= size.rows or characters >= size.characters:
            yield Window(count, rows, numbers, digest.hexdigest(), source.share_read())
            rows, numbers, characters, count = [], [], 0, count + 1
    if rows:
        yield Window(count, rows, numbers, digest.hexdigest(), source.share_read())


def _text(row: Row, column: str) -> Text:
    value: Any = row.get(column)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(token) is int for token in value):
        return value
    if value is None:
        raise ValueError(f"it has no {column!r}")
    raise ValueError(f"its {column!r} is neither a text nor a list of token ids")
