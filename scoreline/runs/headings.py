"""What is said of headings that are not as expected: which mistake it probably is, and how to correct it."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.formats import DELIMITERS, Format

_SEPARATORS = {
    ",": ("commas", "give --input-format csv"),
    "\t": ("tabs", "give --input-format tsv"),
    ";": ("semicolons", "write it with commas, or write it with tabs and give --input-format tsv"),
    "|": ("vertical bars", "write it with commas, or write it with tabs and give --input-format tsv"),
}
"""What may stand between the values of a file: its name, and what to do if the file was read with another one."""

_AROUND_NAMES = " \t\"'`´‘’“”„«»\u00a0\ufeff"
"""Blanks and quotes that stand around names by mistake."""


def check_distinct(file: str, columns: Sequence[str]) -> None:
    """Raise CommandError if two columns of a file have the same name."""
    if repeated := {column for column in columns if columns.count(column) > 1}:
        raise CommandError(f"{file} has several columns {sorted(repeated)[0]!r}", ExitCode.REFUSED)


def missing_column(file: str, file_format: Format, columns: Sequence[str], name: str, option: str) -> CommandError:
    """Return the error for a column that a file does not have.

    file: its name in messages. columns: those that it has. option: the option that named the column.
    """
    there = ", ".join(map(repr, columns))
    return CommandError(
        f"{file} has no column {name!r}; it has {there}{_remedy(file_format, columns, name, option)}", ExitCode.USAGE
    )


def _remedy(file_format: Format, columns: Sequence[str], name: str, option: str) -> str:
    delimiter = DELIMITERS.get(file_format)
    if delimiter is not None:
        wrong_separator = other_separator(delimiter.join(columns), delimiter, name)
        if wrong_separator is not None:
            return f": {wrong_separator}"
    for column in columns:
        if _plain(column).casefold() == _plain(name).casefold():
            as_it_stands = "write the name as it stands in the file, with its case and every blank and quote"
            return f": {as_it_stands}: {option} {column!r}"
    return ""


def other_separator(first_line: str, delimiter: str, name: str | None = None) -> str | None:
    """Return what to do about a file whose values have something else between them, or None if that is not so.

    delimiter: with which the file was read. name: a column that it should have; None: there are several columns.
    """
    for other, (called, what_to_do) in _SEPARATORS.items():
        columns = [_plain(column) for column in next(csv.reader([first_line], delimiter=other), [])]
        if other != delimiter and (name in columns if name is not None else len(columns) > 1):
            return f"its values seem to have {called} between them; {what_to_do}"
    return None


def _plain(name: str) -> str:
    return name.strip(_AROUND_NAMES)
