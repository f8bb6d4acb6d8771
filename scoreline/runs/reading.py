"""Read the rows of a file one after another, so that the file may be larger than the memory."""

from __future__ import annotations

import csv
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, Protocol

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.formats import DELIMITERS, STANDARD, Format, Row
from scoreline.runs.headings import other_separator

MAX_LINE_BYTES = 64 * 1024 * 1024
"""The longest line that is read. A file without line ends would otherwise fill the memory."""


_TWICE = 'within a value in quotes, a quote is written twice, as in "a ""good"" room"'
_ERRORS = {
    "expected after": f"a value goes on behind the quote that ends it: {_TWICE}",
    "unexpected end of data": f"a value begins with a quote, and no quote ends it: {_TWICE}",
    "new-line character seen": "it has carriage returns within a value: put the value in quotes, or end lines with LF",
    "larger than field limit": f"a value is longer than {MAX_LINE_BYTES // 2**20} MiB; does a quote end it?",
}
"""What messages of Python's module for CSV mean, by a part of each."""


class Source(Protocol):
    """A file of rows."""

    name: str  # for messages
    unit: str  # what the numbers of rows count: "line" or "row"
    columns: list[str] | None  # None where each row names its own columns
    schema: Any  # of a Parquet file; None for other files

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        """Yield each row with its number in the file, counted from 1. Raises CommandError."""
        ...

    def share_read(self) -> float | None:
        """Return which part of the file is read, from 0 to 1; None if nobody knows how long it is."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def open_source(name: str, file_format: Format) -> Source:
    """Open a file, or standard input for ``-``. Raises CommandError."""
    try:
        file = _standard_input() if name == STANDARD else open(name, "rb")  # noqa: SIM115
        size = _size(file)
    except OSError as error:
        raise CommandError(f"{name} can't be read: {error.strerror}", ExitCode.USAGE) from None
    if file_format is Format.PARQUET:
        from scoreline.runs.parquet import ParquetSource

        return ParquetSource(name, file)
    shown = "standard input" if name == STANDARD else name
    lines = _Lines(shown, file, size, closes=name != STANDARD)
    if file_format is Format.JSON_LINES:
        return JsonLinesSource(lines)
    return DelimitedSource(lines, DELIMITERS[file_format])


def _standard_input() -> BinaryIO:
    """Return a reader of standard input, which is to be left open.

    A thread that waits for input has the lock of the reader. Closing the reader would wait for that thread, and so
    would Python when it ends, if the reader were its own one.
    """
    with suppress(OSError):  # it has no descriptor
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return sys.stdin.buffer


def _size(file: BinaryIO) -> int | None:
    """Return the bytes of a file; None for a pipe or a terminal."""
    with suppress(OSError):  # it has no descriptor
        status = os.fstat(file.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    return None


class _Lines:
    """The lines of a text file in UTF-8."""

    def __init__(self, name: str, file: BinaryIO, size: int | None, *, closes: bool) -> None:
        """size: in bytes, if it is known. closes: whether the file is closed with this."""
        self.name = name
        self.number = 0  # of the line that was read last
        self.latest = ""  # that line
        self._file = file
        self._size = size
        self._bytes_read = 0
        self._closes = closes

    def __iter__(self) -> Iterator[str]:
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            self.number += 1
            self._bytes_read += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise self.error(f"it is longer than {MAX_LINE_BYTES // 2**20} MiB")
            try:
                # A byte order mark may precede the first line.
                self.latest = line.decode("utf-8-sig" if self.number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise self.error("it is not UTF-8") from None
            yield self.latest

    def error(self, what: str, number: int | None = None) -> CommandError:
        """Return the error for a line; None: the one that was read last."""
        return CommandError(f"{self.name}, line {self.number if number is None else number}: {what}", ExitCode.REFUSED)

    def share_read(self) -> float | None:
        return self._bytes_read / self._size if self._size else None

    def close(self) -> None:
        if self._closes:
            self._file.close()


class _TextSource:
    unit = "line"
    schema: Any = None

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self.name = lines.name

    def share_read(self) -> float | None:
        return self._lines.share_read()

    def close(self) -> None:
        self._lines.close()


class DelimitedSource(_TextSource):
    """CSV or TSV. The first line has the names of the columns, and all values are texts."""

    def __init__(self, lines: _Lines, delimiter: str) -> None:
        super().__init__(lines)
        csv.field_size_limit(MAX_LINE_BYTES)
        self._delimiter = delimiter
        self._reader = csv.reader(lines, delimiter=delimiter, strict=True)
        self.columns: list[str] | None = None
        self.columns = self._read_columns()

    def _read_columns(self) -> list[str]:
        columns = self._next()
        if not columns:
            raise CommandError(f"{self.name} is empty: its first line must name the columns", ExitCode.REFUSED)
        if repeated := {column for column in columns if columns.count(column) > 1}:
            raise CommandError(f"{self.name} has several columns {sorted(repeated)[0]!r}", ExitCode.REFUSED)
        return columns

    def _next(self) -> list[str] | None:
        began = self._lines.number + 1
        try:
            return next(self._reader, None)
        except csv.Error as error:
            separated = other_separator(self._lines.latest, self._delimiter) if self.columns is None else None
            # A value in quotes may have several lines, and what is wrong with it is mostly in the first of them.
            raise self._lines.error(separated or _in_words(str(error)), began) from None

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        assert self.columns is not None
        while (values := self._next()) is not None:
            if not values:
                continue  # a blank line
            if len(values) != len(self.columns):
                raise self._lines.error(f"it has {len(values)} values, and there are {len(self.columns)} columns")
            yield self._lines.number, dict(zip(self.columns, values, strict=True))


def _in_words(error: str) -> str:
    """Return what a message of Python's module for CSV means for the file."""
    return next((words for part, words in _ERRORS.items() if part in error), error)


class JsonLinesSource(_TextSource):
    """JSON lines. Each line is an object."""

    columns: list[str] | None = None

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        for line in self._lines:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise self._lines.error(f"it is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise self._lines.error('it is not a JSON object, such as {"query": "...", "item": "..."}')
            yield self._lines.number, row
