"""Labelled rows, of a file or in memory: the true label of each, and which of them belong together."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
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
    """Labelled rows."""

    name: str
    unit: str  # what the numbers of rows count: "line" or "row" of a file, or "item"
    truth: str  # the column of the true labels
    rows: list[Row]
    numbers: list[int]
    digest: str  # the SHA-256 of all that is said of them

    @classmethod
    def in_memory(cls, columns: Mapping[str, Sequence[Any]], truth: str) -> Labelled:
        """Return rows that come from no file, whose numbers count from 0. Raises CommandError.

        columns: the cells of each column, of which the first one says how many rows there are. truth: the column of
        the true labels.
        """
        (first, cells), *others = columns.items()
        for name, own in others:
            if len(own) != len(cells):
                raise CommandError(f"there are {len(cells):,} {first}, and {name} has {len(own):,} entries")
        if not cells:
            raise CommandError(f"there are no {first}")
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        digest = hashlib.sha256(json.dumps(rows, default=str).encode()).hexdigest()
        return cls(f"the {first}", "item", truth, rows, list(range(len(rows))), digest)

    def where(self, place: int) -> str:
        """Return how a message names a row."""
        return f"{self.unit} {self.numbers[place]}"

    def places(self, labels: Sequence[str]) -> list[int]:
        """Return the place of the true label of each row among these labels. Raises CommandError."""
        known = {label: place for place, label in enumerate(labels)}
        found = []
        for place, row in enumerate(self.rows):
            written = self._true(place, row)
            if written not in known and set(labels) == {YES, NO}:
                written = _AS_ANSWERS.get(written.lower(), written)
            if written not in known:
                hint = ": if it means one of them, give --means once for each label, in their order"
                message = f"its {self.truth!r}, {written!r}, is none of the labels {', '.join(labels)}"
                raise self._refused(place, message + (hint if self.unit != "item" else ""))
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

    def scores(self, columns: Sequence[str], *, ranking: bool) -> list[list[float]]:
        """Return the scores of each row from columns of the file. Raises CommandError.

        ranking: whether rows are ranked by them, so that they may be any numbers; else they are shares of something.
        """
        found = []
        for place, row in enumerate(self.rows):
            numbers = []
            for column in columns:
                number = number_of(row.get(column))
                if number is None or (number < 0 and not ranking):
                    what = "number" if ranking else "number from 0 on"
                    raise self._refused(place, f"its {column!r}, {row.get(column)!r}, is no {what}")
                numbers.append(number)
            if not (ranking or any(numbers)):
                raise self._refused(place, f"one of its scores, {', '.join(columns)}, must be above 0")
            found.append(numbers)
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


@dataclass(frozen=True, slots=True)
class LabelledFile(Labelled):
    """The labelled rows of a file, by whose name they are called."""

    format: Format

    def where(self, place: int) -> str:
        """Return how a message names a row."""
        return f"{self.name}, {self.unit} {self.numbers[place]}"


def read_labelled(name: str, file_format: Format, needed: Sequence[tuple[str, str]], truth: str) -> LabelledFile:
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
        return LabelledFile(name, source.unit, truth, rows, numbers, digest, file_format)
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
