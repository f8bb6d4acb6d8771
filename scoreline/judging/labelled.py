"""Read a labelled file: its rows, the true label of each, and which rows belong together."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.decisions import NO, YES, StateColumns
from scoreline.runs.formats import STANDARD, Format, Row, Unreadable
from scoreline.runs.headings import missing_column
from scoreline.runs.prompts import Columns
from scoreline.runs.reading import open_source

_AS_ANSWERS = {"true": YES, "1": YES, "false": NO, "0": NO}
"""How files write yes and no, too."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A labelled file in memory."""

    name: str
    unit: str  # what the numbers of rows count: "line" or "row"
    format: Format
    truth: str  # the column of the true labels
    rows: list[Row]
    numbers: list[int]  # of the rows in the file
    digest: str  # the SHA-256 of the file

    def where(self, place: int) -> str:
        """Return how a message names a row."""
        return f"{self.name}, {self.unit} {self.numbers[place]}"

    def places(self, labels: Sequence[str]) -> list[int]:
        """Return the place of the true label of each row among these labels. Raises CommandError."""
        known = {label: place for place, label in enumerate(labels)}
        found = []
        for place, row in enumerate(self.rows):
            written = self._true(place, row)
            if written not in known and set(labels) == {YES, NO}:
                written = _AS_ANSWERS.get(written.lower(), written)
            if written not in known:
                raise self._refused(
                    place, f"its {self.truth!r}, {written!r}, is none of the labels {', '.join(labels)}"
                )
            found.append(known[written])
        return found

    def grades(self) -> list[float]:
        """Return the relevance of each row. Raises CommandError."""
        found = []
        for place, row in enumerate(self.rows):
            grade = number_of(self._true(place, row))
            if grade is None or grade < 0:
                raise self._refused(
                    place, f"its {self.truth!r} must be a number from 0 on, which says how relevant it is"
                )
            found.append(grade)
        return found

    def shares(self, columns: Sequence[str]) -> list[list[float]]:
        """Return the scores of each row from columns of the file. Raises CommandError."""
        found = []
        for place, row in enumerate(self.rows):
            numbers = [number_of(row.get(column)) for column in columns]
            for column, number in zip(columns, numbers, strict=True):
                if number is None or number < 0:
                    raise self._refused(place, f"its {column!r}, {row.get(column)!r}, is no number from 0 on")
            found.append([number or 0.0 for number in numbers])
        return found

    def groups(self, columns: Columns | StateColumns | None, query: str | None, *, keeps_duplicates: bool) -> list[Any]:
        """Return what rows that depend on one another have in common: their query, or else their texts.

        columns: where the texts are; None: rows have none. query: a column that groups rows; None: none does. Raises
        CommandError for a row that is there twice, unless such rows are kept.
        """
        texts = [None if columns is None else _texts(columns, row) for row in self.rows]
        if not keeps_duplicates:
            self._refuse_duplicates(texts)
        if query is not None:
            return [json.dumps(row.get(query), default=str) for row in self.rows]
        return [place if text is None else text for place, text in enumerate(texts)]

    def _refuse_duplicates(self, texts: Sequence[str | None]) -> None:
        first: dict[str, int] = {}
        again = [
            (place, first[text])
            for place, text in enumerate(texts)
            if text is not None and first.setdefault(text, place) != place
        ]
        if again:
            place, before = again[0]
            more = f", as {len(again) - 1:,} more rows repeat others" if len(again) > 1 else ""
            raise self._refused(
                place,
                f"it has the texts of {self.unit} {self.numbers[before]}{more}: the same row twice proves no more; "
                "remove it, or have such rows count as one with --keep-duplicates",
            )

    def _true(self, place: int, row: Row) -> str:
        value = row.get(self.truth)
        written = "" if value is None else str(value).strip()
        if not written:
            raise self._refused(place, f"there is no true label in {self.truth!r}")
        return written

    def _refused(self, place: int, what: str) -> CommandError:
        return CommandError(f"{self.where(place)}: {what}", ExitCode.REFUSED)


def read_labelled(name: str, file_format: Format, needed: Sequence[tuple[str, str]], truth: str) -> Labelled:
    """Read a file.

    needed: the columns that must be there, each with the option that names it. truth: that of the true labels. Raises
    CommandError.
    """
    if name == STANDARD:
        raise CommandError("a labelled file is read twice, so it can't be standard input", ExitCode.USAGE)
    source = open_source(name, file_format)
    try:
        rows, numbers = [], []
        for number, row in source:
            if isinstance(row, Unreadable):
                raise CommandError(f"{name}, {source.unit} {number}: {row.reason}", ExitCode.REFUSED)
            rows.append(row)
            numbers.append(number)
        columns = (
            source.columns if source.columns is not None else list(dict.fromkeys(key for row in rows for key in row))
        )
        for column, option in (*needed, (truth, "--truth")):
            if column not in columns:
                raise missing_column(source.name, file_format, columns, column, option)
        if not rows:
            raise CommandError(f"{name} has no rows", ExitCode.REFUSED)
        digest = hashlib.sha256(Path(name).read_bytes()).hexdigest()
        return Labelled(name, source.unit, file_format, truth, rows, numbers, digest)
    finally:
        source.close()


def number_of(value: Any) -> float | None:
    """Return a finite number, also of a text; None if it is none."""
    if isinstance(value, int | float | str):
        with suppress(ValueError):
            number = float(value)
            return number if math.isfinite(number) else None
    return None


def _texts(columns: Columns | StateColumns, row: Row) -> str | None:
    try:
        return json.dumps(columns.texts(row), sort_keys=True, default=str)
    except ValueError:  # the run says what is wrong with it
        return None
