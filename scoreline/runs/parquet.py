"""Read and write Parquet, where the package pyarrow is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.formats import Format, Kind, Row, foreign, lost, unfinished
from scoreline.runs.headings import check_distinct
from scoreline.runs.storing import (
    UNFINISHED_SEGMENT,
    give_name,
    remove_segments,
    remove_unfinished,
    segment,
    store_for_good,
)

try:
    import pyarrow as pa
    from pyarrow import parquet as pq
except ImportError:
    raise CommandError("Parquet needs the package pyarrow: pip install pyarrow", ExitCode.USAGE) from None

TYPES = {Kind.NUMBER: pa.float64(), Kind.NUMBERS: pa.list_(pa.float64()), Kind.TEXT: pa.string()}
"""The types of new columns."""

BATCH_ROWS = 1_000
"""Rows that are read at a time."""


class ParquetSource:
    """A Parquet file."""

    unit = "row"

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name = name
        try:
            self._file = pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(name, error) from None
        self.schema: Any = self._file.schema_arrow
        self.columns: list[str] | None = list(self.schema.names)
        check_distinct(name, self.columns)
        self._rows_read = 0

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        try:
            for batch in self._file.iter_batches(BATCH_ROWS):
                for row in batch.to_pylist():
                    self._rows_read += 1
                    yield self._rows_read - 1, row
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.name, error) from None
        except (ValueError, OverflowError) as error:
            raise unheld(self.name, self._rows_read, error) from None

    def share_read(self) -> float | None:
        rows = self._file.metadata.num_rows
        return self._rows_read / rows if rows else None

    def close(self) -> None:
        self._file.close(force=True)


def _unreadable(name: str, error: Exception) -> CommandError:
    return CommandError(f"{name} can't be read as Parquet: {str(error).splitlines()[0]}", ExitCode.REFUSED)


def unheld(name: str, row: int, error: Exception) -> CommandError:
    """Return the error for a value that Python can't hold, such as a date after the year 9999.

    row: the number of the first row of those that were read with it.
    """
    what = f"among the {BATCH_ROWS:,} rows from row {row} on, a value can't be read"
    return CommandError(f"{name}: {what}: {error}", ExitCode.REFUSED)


class ParquetSink:
    """A Parquet file that is made of segments: a file for each window of rows, and one file of them all at the end.

    A Parquet file can be read only once it is closed, so what a killed process had written of it would be lost.
    schema: the types of the input's columns; None: each column gets the type of its values.
    """

    def __init__(self, path: Path, columns: Sequence[str], new_columns: Mapping[str, Kind], schema: Any) -> None:
        self._path = path
        self._folder = unfinished(path, Format.PARQUET)
        self._whole = self._folder / UNFINISHED_SEGMENT
        self._columns = [*columns, *new_columns]
        self._new_columns = new_columns
        self._schema = schema
        self._segments = 0

    def resume(self, state: int) -> None:
        """Keep the first ``state`` segments, and remove those behind them."""
        if not all(self._segment(number).exists() for number in range(state)):
            raise lost(self._folder)
        try:
            self._folder.mkdir(exist_ok=state > 0)
        except FileExistsError:
            raise foreign(self._folder) from None
        except OSError as error:
            raise CommandError(f"{self._folder} can't be written: {error.strerror}", ExitCode.USAGE) from None
        remove_segments(self._folder, state)
        self._segments = state

    def write(self, rows: Sequence[Row]) -> int:
        """Write a segment, which is on the disk with the return, and return how many there are."""
        with self._naming_errors():
            pq.write_table(self._table(rows), self._whole)
        store_for_good(self._whole)
        self._whole.replace(self._segment(self._segments))
        store_for_good(self._folder)
        self._segments += 1
        return self._segments

    def complete(self) -> None:
        """Make one file of all segments."""
        segments = [self._segment(number) for number in range(self._segments)]
        with self._naming_errors():
            schema = _unified(segments) if segments else self._table([]).schema
            with pq.ParquetWriter(self._whole, schema) as writer:
                for path in segments:
                    writer.write_table(_cast(pq.read_table(path), schema))
        store_for_good(self._whole)

    def finish(self) -> None:
        """Give the complete file its name, and remove the segments."""
        give_name(self._whole, self._path)
        self.remove()

    def remove(self) -> None:
        """Remove what was written, except for a finished file."""
        remove_unfinished(self._folder)

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        """Have what Arrow can't do be an error of the file."""
        try:
            yield
        except (pa.ArrowException, UnicodeError) as error:  # The latter is about a lone surrogate.
            raise CommandError(f"{self._path} can't be written as Parquet: {str(error).splitlines()[0]}") from None

    def _segment(self, number: int) -> Path:
        return segment(self._folder, number)

    def _table(self, rows: Sequence[Row]) -> Any:
        arrays, fields = [], []
        for name in self._columns:
            values = [row.get(name) for row in rows]
            kind = None
            if name in self._new_columns:
                kind = TYPES[self._new_columns[name]]
            elif self._schema is not None:
                kind = self._schema.field(name).type
            array = _array(values, kind)
            arrays.append(array)
            known = self._schema is not None and name not in self._new_columns
            fields.append(self._schema.field(name) if known else pa.field(name, array.type))
        metadata = None if self._schema is None else self._schema.metadata
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata))


def _array(values: Sequence[Any], kind: Any) -> Any:
    try:
        array = pa.array(values, type=kind)
    except (pa.ArrowException, OverflowError):
        if kind is not None:
            raise
        return _as_texts(values)  # they have no type in common
    return array if kind is not None or _can_be_written(array.type) else _as_texts(values)


def _can_be_written(kind: Any) -> bool:
    """Return whether Parquet has a type: a struct without fields, as of empty objects, it has not."""
    inner = [kind.field(n).type for n in range(kind.num_fields)]
    return not (pa.types.is_struct(kind) and not inner) and all(map(_can_be_written, inner))


def _as_texts(values: Sequence[Any]) -> Any:
    """Return values as texts: those that are none as JSON."""
    texts = [value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False) for value in values]
    return pa.array(texts, type=pa.string())


def _unified(segments: Sequence[Path]) -> Any:
    """Return a schema for all segments. A column becomes texts if no type can hold the values of all of them."""
    schemas = [pq.read_schema(path) for path in segments]
    fields = []
    for name in schemas[0].names:
        of_column = [schema.field(name) for schema in schemas]
        try:
            field = pa.unify_schemas([pa.schema([one]) for one in of_column], promote_options="permissive").field(name)
            for path, own in zip(segments, of_column, strict=True):
                if own.type != field.type and not pa.types.is_null(own.type):
                    # Whether a whole number is exact as a floating-point one is known by its value alone.
                    pq.read_table(path, columns=[name]).column(0).cast(field.type)
        except pa.ArrowException:
            field = pa.field(name, pa.string())
        fields.append(field)
    return pa.schema(fields, metadata=schemas[0].metadata)


def _cast(table: Any, schema: Any) -> Any:
    arrays = []
    for field in schema:
        column = table.column(field.name)
        if column.type != field.type:
            is_text = pa.types.is_string(field.type)
            column = _as_texts(column.to_pylist()) if is_text else column.cast(field.type)
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=schema)
