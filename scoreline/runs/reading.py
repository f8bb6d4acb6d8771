"""Read the rows of a file one after another, so that the file may be larger than the memory."""

from __future__ import annotations

import csv
import gzip
import json
import os
import stat
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple, Protocol

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.formats import DELIMITERS, STANDARD, Format, Row, Unreadable, is_packed
from scoreline.runs.headings import check_distinct, other_separator

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

    def __iter__(self) -> Iterator[tuple[int, Row | Unreadable]]:
        """Yield each row with its number in the file: lines count from 1, and rows from 0.

        Raises CommandError if nothing can be read.
        """
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
    lines = _Lines(shown, file, size, closes=name != STANDARD, packed=is_packed(name))
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


class _Line(NamedTuple):
    text: str
    problem: str | None  # why it can't be read; then the text is only what can be told of it


class _Lines:
    """The lines of a text file in UTF-8."""

    def __init__(self, name: str, file: BinaryIO, size: int | None, *, closes: bool, packed: bool) -> None:
        """size: in bytes, if it is known. closes: whether the file is closed with this. packed: with gzip."""
        self.name = name
        self.number = 0  # of the line that was read last
        self.record: list[_Line] = []  # what was read since the last ``begin``
        self._put_back: deque[_Line] = deque()
        self._stored = file
        self._file: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=file) if packed else file
        self._size = size
        self._characters = 0  # of the record
        self._closes = closes

    def begin(self) -> int:
        """Begin a record, and return the number of its first line."""
        self.record, self._characters = [], 0
        return self.number + 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._put_back.popleft() if self._put_back else self._read()
        if line is None:
            raise StopIteration
        self.number += 1
        self.record.append(line)
        self._characters += len(line.text)
        if len(self.record) > 1 and self._characters > MAX_LINE_BYTES:
            raise csv.Error("larger than field limit")
        return line.text

    def _read(self) -> _Line | None:
        line = self._read_line()
        if len(line) > MAX_LINE_BYTES:
            while line and not line.endswith(b"\n"):
                line = self._read_line()
            return _Line("\n", f"it is longer than {MAX_LINE_BYTES // 2**20} MiB")
        try:
            # A byte order mark may precede the first line.
            return _Line(line.decode("utf-8" if self.number else "utf-8-sig"), None) if line else None
        except UnicodeDecodeError:
            return _Line(line.decode(errors="backslashreplace"), "it is not UTF-8")

    def _read_line(self) -> bytes:
        try:
            return self._file.readline(MAX_LINE_BYTES + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise CommandError(f"{self.name} can't be read any further: {error}", ExitCode.REFUSED) from None

    def put_back(self) -> None:
        """Have all lines of the record but the first one be read again."""
        self._put_back.extendleft(reversed(self.record[1:]))
        self.number -= len(self.record) - 1
        del self.record[1:]

    def unreadable(self, reason: str) -> Unreadable:
        """Return the record as a row that can't be read."""
        return Unreadable(reason, "".join(line.text for line in self.record))

    @property
    def problem(self) -> tuple[int, str] | None:
        """The first line of the record that can't be read, by its number, and why; or None."""
        first = self.number - len(self.record) + 1
        found = ((n, line.problem) for n, line in enumerate(self.record, first) if line.problem is not None)
        return next(found, None)

    def error(self, what: str, number: int) -> CommandError:
        """Return the error for a line."""
        return CommandError(f"{self.name}, line {number}: {what}", ExitCode.REFUSED)

    def share_read(self) -> float | None:
        return self._stored.tell() / self._size if self._size else None

    def close(self) -> None:
        if self._closes:
            self._stored.close()


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
        number, columns = self._next() or (0, [])
        if isinstance(columns, Unreadable):
            separated = other_separator(columns.content, self._delimiter)
            raise self._lines.error(separated or columns.reason, number)
        if not columns:
            raise CommandError(f"{self.name} is empty: its first line must name the columns", ExitCode.REFUSED)
        check_distinct(self.name, columns)
        return columns

    def _next(self) -> tuple[int, list[str] | Unreadable] | None:
        """Return the number of the line with which the next record begins, and its values; None: there is none."""
        number = self._lines.begin()
        try:
            values = next(self._reader, None)
        except csv.Error as error:
            # A value in quotes may have several lines, and what is wrong with it is mostly in the first of them. A
            # quote that nothing ends would make one value of all that follow.
            self._lines.put_back()
            return number, self._lines.unreadable(_in_words(str(error)))
        if (problem := self._lines.problem) is not None:
            return problem[0], self._lines.unreadable(problem[1])
        return None if values is None else (number, values)

    def __iter__(self) -> Iterator[tuple[int, Row | Unreadable]]:
        assert self.columns is not None
        while (record := self._next()) is not None:
            number, values = record
            if isinstance(values, Unreadable):
                yield number, values
            elif len(values) == len(self.columns):
                yield number, dict(zip(self.columns, values, strict=True))
            elif values:  # A blank line is no row.
                what = f"it has {len(values)} values, and there are {len(self.columns)} columns"
                hint = "" if len(values) < len(self.columns) else ": a text with a comma needs quotes around it"
                yield number, self._lines.unreadable(what + hint)


def _in_words(error: str) -> str:
    """Return what a message of Python's module for CSV means for the file."""
    return next((words for part, words in _ERRORS.items() if part in error), error)


class JsonLinesSource(_TextSource):
    """JSON lines. Each line is an object."""

    columns: list[str] | None = None

    def __iter__(self) -> Iterator[tuple[int, Row | Unreadable]]:
        while True:
            number = self._lines.begin()
            line = next(self._lines, None)
            if line is None:
                return
            if (problem := self._lines.problem) is not None:
                yield number, self._lines.unreadable(problem[1])
            elif line.strip():
                yield number, self._row(line)

    def _row(self, line: str) -> Row | Unreadable:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            return self._lines.unreadable(f"it is not JSON: {error}")
        if not isinstance(row, dict):
            return self._lines.unreadable('it is not a JSON object, such as {"query": "...", "item": "..."}')
        return row
