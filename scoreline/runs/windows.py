"""Group the rows of a file by their query, a window of rows at a time.

A window is as much of the file as is kept in memory. Within it, all items of a query go to the service together, so
that the query is computed once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.decisions import StateColumns
from scoreline.runs.formats import Row, Unreadable
from scoreline.runs.journal import Journal
from scoreline.runs.prompts import Columns, EmptyTextError, Text
from scoreline.runs.reading import Source

MAX_ITEMS = 984
"""Items of a group. With the 16 texts that a baseline may have, these are as many as a job may have whose answer still
contains its scores."""

DIGEST_BYTES = 8
"""Of the digest of a row, by which a row that was changed is told."""

MAX_GROUP_CHARACTERS = 4 * 1024 * 1024
"""Characters of the items of a group, by which it stays below the limits of a request."""


@dataclass(frozen=True, slots=True)
class WindowSize:
    """How much of a file is kept in memory at a time, at most."""

    rows: int
    characters: int


WINDOW = WindowSize(20_000, 32 * 1024 * 1024)
"""So much is, if nobody says otherwise."""


@dataclass(slots=True)
class Group:
    """Rows of a window that have the same query."""

    query: Text | dict[str, Any]  # an object only as the state of a decision
    rows: list[int] = field(default_factory=list)  # their places in the window
    items: list[Text] = field(default_factory=list)
    labels: list[list[str]] = field(default_factory=list)  # of each row, if rows have labels of their own
    characters: int = 0

    @property
    def is_full(self) -> bool:
        """Whether another row of this query begins another group."""
        return len(self.items) >= MAX_ITEMS or self.characters >= MAX_GROUP_CHARACTERS

    def in_order(self) -> Group:
        """Return the rows in the order of what they say."""
        places = sorted(range(len(self.rows)), key=lambda n: json.dumps([self.items[n], *self.labels[n : n + 1]]))
        labels = [self.labels[n] for n in places] if self.labels else []
        return Group(self.query, [self.rows[n] for n in places], [self.items[n] for n in places], labels)

    def part(self, begin: int, end: int) -> Group:
        """Return some of the rows."""
        return Group(self.query, self.rows[begin:end], self.items[begin:end], self.labels[begin:end])


@dataclass(slots=True)
class Window:
    """Some rows of a file that follow one another."""

    number: int  # counted from 0
    rows: list[Row]
    numbers: list[int]  # of the rows in the file
    digests: bytes  # of these rows, DIGEST_BYTES each
    unreadable: dict[int, str]  # why a row can't be read, by its place; it has no values
    share_read: float | None  # how much of the file is read with it

    def groups(self, columns: Columns | StateColumns) -> tuple[list[Group], dict[int, str], dict[int, EmptyTextError]]:
        """Return the rows by their query, what is wrong with rows that can't be scored, and which rows lack a text."""
        groups: dict[str, Group] = {}
        done: list[Group] = []
        wrong = dict(self.unreadable)
        empty: dict[int, EmptyTextError] = {}
        for place, row in enumerate(self.rows):
            if place in self.unreadable:
                continue
            try:
                query, item = columns.texts(row)
                labels = columns.labels_of(row)
            except EmptyTextError as error:
                empty[place] = error
                continue
            except ValueError as error:
                wrong[place] = str(error)
                continue
            key = json.dumps(query)  # A text may look like token ids or an object.
            group = groups.setdefault(key, Group(query))
            group.rows.append(place)
            group.items.append(item)
            if columns.labels:
                group.labels.append(labels)
            group.characters += len(item) + sum(map(len, labels))
            if group.is_full:
                done.append(groups.pop(key))
        return [*done, *groups.values()], wrong, empty


def all_windows(source: Source, size: WindowSize, limit: int | None = None) -> Iterator[Window]:
    """Yield the windows of all rows. limit: how many rows of the file there are to be; None: all."""
    return _windows(islice(source, limit), source, size, 0)


def unwritten_windows(source: Source, size: WindowSize, journal: Journal, limit: int | None = None) -> Iterator[Window]:
    """Yield the windows of the rows that are not written yet.

    limit: how many rows of the file there are to be; None: all. Raises CommandError if the rows before these are not
    those any more that were written.
    """
    rows = islice(source, limit)
    number = 0
    for digests in journal.digests():
        for begin in range(0, len(digests), DIGEST_BYTES):
            number, row = next(rows, (number, None))
            if row is None:
                what = f"it ends with {source.unit} {number} now, and the run has read more"
            elif _digest(_content(row)) != digests[begin : begin + DIGEST_BYTES]:
                what = f"{source.unit} {number} is not what it was when the run read it"
            else:
                continue
            raise CommandError(
                f"{source.name}: {what}: put back what was there, or score all rows with --restart", ExitCode.USAGE
            )
    yield from _windows(rows, source, size, journal.written.windows)


def _windows(
    rows: Iterator[tuple[int, Row | Unreadable]], source: Source, size: WindowSize, number: int
) -> Iterator[Window]:
    """Yield rows in windows, of which the first one has this number. Raises CommandError."""

    def begun() -> Window:
        return Window(number, [], [], b"", {}, None)

    window, characters = begun(), 0
    digests: list[bytes] = []
    for place, row in rows:
        content = _content(row)
        if isinstance(row, Unreadable):
            window.unreadable[len(window.rows)] = row.reason
        window.rows.append({} if isinstance(row, Unreadable) else row)
        window.numbers.append(place)
        digests.append(_digest(content))
        characters += len(content)
        if len(window.rows) >= size.rows or characters >= size.characters:
            window.digests, window.share_read = b"".join(digests), source.share_read()
            yield window
            number += 1
            window, digests, characters = begun(), [], 0
    if window.rows:
        window.digests, window.share_read = b"".join(digests), source.share_read()
        yield window


def _content(row: Row | Unreadable) -> str:
    return row.content if isinstance(row, Unreadable) else json.dumps(row, default=str)


def _digest(content: str) -> bytes:
    return hashlib.blake2b(content.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()
