"""Write rows with their scores, so that a process that was killed can go on where it was."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.formats import DELIMITERS, STANDARD, Format, Kind, Row, foreign, is_packed, lost, unfinished
from scoreline.runs.storing import give_name, remove_unfinished, store_for_good

LINES_AT_ONCE = 1_000

_BEFORE_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a cell begins with that a spreadsheet takes for a formula."""


class Sink(Protocol):
    """Where rows are written. Its state is a number: whoever knows it can undo all that was written later."""

    def resume(self, state: int) -> None:
        """Begin with 0, or go on where the state was ``state``. Raises CommandError.

        To begin, nothing may be where the rows are written until they are complete.
        """
        ...

    def write(self, rows: Sequence[Row]) -> int:
        """Write rows, have the system store them for good, and return the new state. Raises CommandError, OSError."""
        ...

    def complete(self) -> None:
        """Write what follows the last row, and have the system store all of it for good."""
        ...

    def finish(self) -> None:
        """Give the complete file its name. After a kill, another process can do it, or do it again.

        Raises CommandError, OSError.
        """
        ...

    def remove(self) -> None:
        """Remove what was written, except for a finished file."""
        ...


def open_sink(
    name: str,
    file_format: Format,
    columns: Sequence[str] | None,
    new_columns: Mapping[str, Kind],
    schema: Any,
    *,
    escape_formulas: bool = False,
) -> Sink:
    """Return where rows are written: to a file, or to standard output for ``-``.

    columns: of the input; None: those of each row, which only JSON lines can have. new_columns: follow these.
    schema: the types of the columns, if they come from a Parquet file. escape_formulas: keep spreadsheets from
    computing what the cells of a CSV or TSV say. Raises CommandError.
    """
    if file_format is Format.PARQUET:
        if name == STANDARD:
            raise CommandError("Parquet can't be written to standard output: name a file", ExitCode.USAGE)
        from scoreline.runs.parquet import ParquetSink

        return ParquetSink(Path(name), columns or [], new_columns, schema)
    layout: _Layout = _Layout()
    if file_format is not Format.JSON_LINES:
        layout = _Delimited(file_format, columns or [], [*new_columns], escape_formulas=escape_formulas)
    return StandardOutput(layout) if name == STANDARD else TextSink(Path(name), layout)


def write_lines(path: Path, rows: Iterator[Row]) -> None:
    """Write a file of JSON lines, in the place of one that is there. After a kill, it can be done again."""
    sink = TextSink(path, _Layout())
    sink.remove()
    sink.resume(0)
    while some := list(islice(rows, LINES_AT_ONCE)):
        sink.write(some)
    sink.complete()
    sink.finish()


def open_document(name: str) -> Sink:
    """Return where rows are written as one JSON document: to a file, or to standard output for ``-``."""
    return StandardOutput(_Document()) if name == STANDARD else TextSink(Path(name), _Document())


class _Layout:
    """How rows are written: a line each, as JSON, unless a layout says otherwise."""

    def heading(self) -> bytes:
        return b""

    def rows(self, rows: Sequence[Row]) -> bytes:
        return b"".join(map(_json_line, rows))

    def ending(self) -> bytes:
        return b""


class _Document(_Layout):
    """One JSON document, a row a line. It can't be gone on with."""

    def __init__(self) -> None:
        self._separator = b"\n"

    def heading(self) -> bytes:
        return b'{"object": "list", "data": ['

    def rows(self, rows: Sequence[Row]) -> bytes:
        parts = []
        for row in rows:
            parts.append(self._separator + json.dumps(row).encode())
            self._separator = b",\n"
        return b"".join(parts)

    def ending(self) -> bytes:
        return b"\n]}\n"


def _json_line(row: Row) -> bytes:
    try:
        return _as_json(row).encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only escape
        return _as_json(row, ensure_ascii=True).encode() + b"\n"


def _as_json(value: Any, *, ensure_ascii: bool = False) -> str:
    """Return a value as JSON. It has no NaN and no infinities: null stands for them."""
    try:
        return json.dumps(value, ensure_ascii=ensure_ascii, default=str, allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
        return json.dumps(finite, ensure_ascii=ensure_ascii)


class _Delimited(_Layout):
    """CSV or TSV. An empty cell stands for a value that is not there."""

    def __init__(
        self, file_format: Format, columns: Sequence[str], new_columns: Sequence[str], *, escape_formulas: bool
    ) -> None:
        self._columns = [*columns, *new_columns]
        self._delimiter = DELIMITERS[file_format]
        self._cell = _harmless if escape_formulas else str

    def heading(self) -> bytes:
        return self._encode([self._columns])

    def rows(self, rows: Sequence[Row]) -> bytes:
        return self._encode([[_cell(row.get(name)) for name in self._columns] for row in rows])

    def _encode(self, lines: list[list[str]]) -> bytes:
        text = _Collected()
        # Older versions of Python's module put a carriage return in quotes only if it is part of what ends lines.
        cells = ([*map(self._cell, line)] for line in lines)
        csv.writer(text, delimiter=self._delimiter, lineterminator="\r\n").writerows(cells)
        return "".join(text.parts).encode(errors="backslashreplace")  # of lone surrogates


class _Collected:
    """Lines that are written one by one, of which each is to end with a line feed alone."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, part: str) -> None:
        self.parts.append(part.removesuffix("\r\n") + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return _as_json(value) if isinstance(value, list | dict | bool) else str(value)


def _harmless(cell: str) -> str:
    """Return a cell with a quote in front if a spreadsheet would compute it. A number stays as it is."""
    if not cell.startswith(_BEFORE_FORMULAS):
        return cell
    with suppress(ValueError):
        float(cell)
        return cell
    return "'" + cell


class TextSink:
    """A file of text. It has another name until it is complete. Its state is the number of its bytes.

    A packed file consists of a part for each time that rows were written. What reads gzip takes them as one file.
    """

    def __init__(self, path: Path, layout: _Layout) -> None:
        self._path = path
        self._unfinished = unfinished(path, Format.JSON_LINES)
        self._layout = layout
        self._is_packed = is_packed(path.name)
        self._file: BinaryIO | None = None

    def resume(self, state: int) -> None:
        try:
            self._file = self._unfinished.open("r+b" if state else "xb")
        except FileExistsError:
            raise foreign(self._unfinished) from None
        except OSError as error:
            if state and isinstance(error, FileNotFoundError):
                raise lost(self._unfinished) from None
            raise CommandError(f"{self._unfinished} can't be written: {error.strerror}", ExitCode.USAGE) from None
        if self._file.seek(0, os.SEEK_END) < state:
            raise lost(self._unfinished)
        self._file.truncate(state)
        self._file.seek(state)
        if state == 0:
            self._put(self._layout.heading())
            store_for_good(self._unfinished.absolute().parent)

    def write(self, rows: Sequence[Row]) -> int:
        assert self._file is not None
        self._put(self._layout.rows(rows))
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def _put(self, content: bytes) -> None:
        assert self._file is not None
        if content:
            self._file.write(gzip.compress(content, mtime=0) if self._is_packed else content)

    def complete(self) -> None:
        assert self._file is not None
        self._put(self._layout.ending())
        if self._is_packed and not self._file.tell():
            self._file.write(gzip.compress(b"", mtime=0))  # No bytes at all are no file of gzip.
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def finish(self) -> None:
        give_name(self._unfinished, self._path)

    def remove(self) -> None:
        remove_unfinished(self._unfinished)


def discard_output() -> None:
    """Have what is left of the output go nowhere. Otherwise Python would try to write it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class StandardOutput:
    """Standard output, whose rows can't be taken back."""

    def __init__(self, layout: _Layout) -> None:
        self._layout = layout
        self._file = sys.stdout.buffer

    def resume(self, state: int) -> None:
        assert state == 0
        self._file.write(self._layout.heading())

    def write(self, rows: Sequence[Row]) -> int:
        self._file.write(self._layout.rows(rows))
        self._file.flush()
        return 0

    def complete(self) -> None:
        self._file.write(self._layout.ending())
        self._file.flush()

    def finish(self) -> None:
        pass

    def remove(self) -> None:
        pass
