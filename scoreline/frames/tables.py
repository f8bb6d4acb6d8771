"""How rows of tables are read, and get new columns: Arrow, pandas, Polars, and all that gives Arrow's stream."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet as pq

from scoreline.frames.asked import Asking
from scoreline.frames.costs import Cost, cost_of
from scoreline.frames.errors import TableError, as_table_errors
from scoreline.frames.streams import NAME, Calls, TableSource, scored, served, written
from scoreline.runs.formats import Format, Kind, Row
from scoreline.runs.headings import missing_column
from scoreline.runs.parquet import BATCH_ROWS, TYPES

if TYPE_CHECKING:
    import polars as pl

CHUNK_ROWS = 10_000
"""Rows of a table of pandas or Polars that are read at a time."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of some kind."""

    columns: list[str]
    chunks: Callable[[], Iterable[Any]]  # all of its rows
    rows: Callable[[Any, list[str]], Iterable[Row]]  # of a chunk, with some columns
    arrow_rows: Callable[[Any, list[str]], Iterable[Row]]  # the same, with values as Arrow has them
    schema: Callable[[], pa.Schema]
    with_new: Callable[[pa.Table], Any] | None  # the table with new columns; None: it comes in chunks
    can_be_read_again: bool = True

    def source(self, columns: list[str], *, keeps: bool = False) -> TableSource[Any]:
        """Return the rows with some columns. keeps: as for TableSource."""
        return TableSource(self.chunks(), columns, self.rows, None, keeps=keeps)

    def whole_source(self) -> TableSource[Any]:
        """Return the rows with all columns, whose types are kept. Dictionaries become what they stand for."""
        schema = pa.schema([field.with_type(_plain(field.type)) for field in self.schema()])
        return TableSource(self.chunks(), self.columns, self.arrow_rows, schema, keeps=False)

    def cost(self, asking: Asking, *, tokens: bool = True) -> Cost:
        """Return what scoring its rows takes. Raises TableError and ScorelineError."""
        return cost_of(asking, self.source(asking.needed), tokens=tokens)

    def check_cost(self, asking: Asking) -> None:
        """Raise CostError if scoring its rows takes more than the caller allows."""
        if asking.max_items is None and asking.max_tokens is None:
            return
        if not self.can_be_read_again:
            raise TableError("max_items and max_tokens need a table that can be read twice, and this is a stream")
        self.cost(asking, tokens=asking.max_tokens is not None).check(asking.max_items, asking.max_tokens)


def check_columns(asking: Asking, columns: list[str]) -> None:
    """Raise TableError if one is missing of these, or stands in a template where it has none of its places."""
    with as_table_errors():
        for name, option in asking.plan.columns.named:
            if name not in columns:
                raise missing_column(NAME, Format.PARQUET, columns, name, option)
        for name in asking.needed:
            if name not in columns:
                raise missing_column(NAME, Format.PARQUET, columns, name, "item_template")
        asking.plan.check_templates(NAME, columns)


def with_columns(
    given: Any, asking: Asking, output: str | os.PathLike[str] | None = None, *, restart: bool = False
) -> Any:
    """Return a table of the same kind with the new columns. Raises TypeError, TableError and ScorelineError.

    A stream becomes a ``RecordBatchReader``. output: a Parquet file that is written meanwhile, and read then.
    """
    table = table_of(given)
    check_columns(asking, table.columns)
    models = served(asking)
    asking = asking.of_served(models)
    new = asking.columns(models, table.columns)
    polars = sys.modules.get("polars")
    is_lazy = polars is not None and isinstance(given, polars.LazyFrame)
    if output is not None:
        output = os.fspath(output)
        if not output.lower().endswith((".parquet", ".pq")) or "://" in output:
            raise TableError(f"output must be the name of a Parquet file, and not {output}")
        if restart and asking.plan.shared_run is not None:
            raise TableError("restart does not go with run: give the run another name")
        table.check_cost(asking)
        written(asking, table.whole_source(), output, restart=restart)
        return _read(output, table, new, given if is_lazy else None)
    if is_lazy:
        return _scanned(given, asking, new)
    table.check_cost(asking)
    return _streamed(table, asking, new) if table.with_new is None else table.with_new(new_of_whole(table, asking, new))


def check_cases(engine: str, names: Sequence[str]) -> None:
    """Raise TableError if two names differ only by their case, in which an engine sees no difference."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) is not name:
            raise TableError(f"{engine} can't tell {other!r} from {name!r}: give one of them another name")


def new_of_whole(table: Table, asking: Asking, new: Mapping[str, Kind], calls: Calls | None = None) -> pa.Table:
    """Return the new columns of a table. calls: to which this one belongs. Raises TableError and ScorelineError."""
    return pa.Table.from_batches(scored(asking, table.source(asking.needed), new, calls), schema_of(new))


def schema_of(new: Mapping[str, Kind]) -> pa.Schema:
    """Return the types of new columns."""
    return pa.schema([(name, TYPES[kind]) for name, kind in new.items()])


def _streamed(table: Table, asking: Asking, new: Mapping[str, Kind]) -> pa.RecordBatchReader:
    source = table.source(asking.needed, keeps=True)
    given = table.schema()
    schema = pa.schema([*given, *schema_of(new)], metadata=given.metadata)
    pairs = source.beside(scored(asking, source, new))
    batches = (pa.RecordBatch.from_arrays([*chunk.columns, *found.columns], schema=schema) for chunk, found in pairs)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _read(output: str, table: Table, new: Mapping[str, Kind], lazy: pl.LazyFrame | None) -> Any:
    """Return a table with the new columns that are in a file."""
    if lazy is not None:
        return sys.modules["polars"].scan_parquet(output, glob=False).cast(dict(lazy.collect_schema()))
    if table.with_new is not None:
        return table.with_new(pq.read_table(output, columns=[*new]).cast(schema_of(new)))
    file = pq.ParquetFile(output)
    return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of what a dictionary stands for, and of texts that every reader of Parquet knows."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.large_string() if pa.types.is_string_view(kind) else kind


def _scanned(given: pl.LazyFrame, asking: Asking, new: Mapping[str, Kind]) -> pl.LazyFrame:
    """Return a lazy frame whose rows are scored when it is collected, and only if their scores are wanted."""
    import polars as pl
    from polars.io.plugins import register_io_source

    empty = pl.from_arrow(schema_of(new).empty_table())
    assert isinstance(empty, pl.DataFrame)
    schema = {**given.collect_schema(), **empty.schema}

    def scan(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted = list(schema) if columns is None else columns
        of_filter = set() if predicate is None else set(predicate.meta.root_names())
        few = given if rows is None else given.head(rows)
        if predicate is not None and not of_filter & new.keys():
            few, predicate = few.filter(predicate), None  # What it leaves out is not scored.
        is_scored = bool(new.keys() & {*wanted, *of_filter})
        read = {*wanted, *of_filter, *(asking.needed if is_scored else ())} - new.keys()
        table = _lazy(few.select([name for name in schema if name in read]))
        if not is_scored:
            found = table.chunks()
        else:
            table.check_cost(asking)
            source = table.source(asking.needed, keeps=True)
            pairs = source.beside(scored(asking, source, new))
            found = (chunk.hstack(pl.from_arrow(scores)) for chunk, scores in pairs)
        for chunk in found:
            yield (chunk if predicate is None else chunk.filter(predicate)).select(wanted)

    return register_io_source(scan, schema=schema, is_pure=True)


def table_of(given: Any) -> Table:
    """Return how a table of any kind is read. Raises TypeError, and TableError for columns with the same name."""
    if isinstance(given, pa.Table):
        return _arrow(given, lambda found: found)
    if isinstance(given, pa.RecordBatch):
        return _arrow(pa.Table.from_batches([given]), _one_batch)
    polars, pandas = sys.modules.get("polars"), sys.modules.get("pandas")
    if polars is not None and isinstance(given, polars.LazyFrame):
        return _lazy(given)
    if polars is not None and isinstance(given, polars.DataFrame):
        return _polars(
            given.head(0), lambda: given.iter_slices(CHUNK_ROWS), lambda new: given.hstack(polars.from_arrow(new))
        )
    if pandas is not None and isinstance(given, pandas.DataFrame):
        return _pandas(given)
    if isinstance(given, pa.RecordBatchReader) or hasattr(given, "__arrow_c_stream__"):
        try:
            reader = given if isinstance(given, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(given)
        except pa.ArrowInvalid:
            raise TypeError(f"a {type(given).__name__} is a column and no table: make a table of it") from None
        columns, schema = _distinct(reader.schema.names), reader.schema
        return Table(columns, lambda: reader, _rows_of_arrow, _rows_of_arrow, lambda: schema, None, False)
    raise TypeError(f"a {type(given).__name__} is no table of Arrow, pandas or Polars, and gives no Arrow stream")


def _distinct(names: list[str]) -> list[str]:
    """Return the names of columns. Raises TableError if two are the same."""
    for name in names:
        if names.count(name) > 1:
            raise TableError(f"{NAME} has two columns {name!r}")
    return names


def _arrow(table: pa.Table, as_given: Callable[[pa.Table], Any]) -> Table:
    def with_new(new: pa.Table) -> Any:
        schema = pa.schema([*table.schema, *new.schema], metadata=table.schema.metadata)
        return as_given(pa.Table.from_arrays([*table.columns, *new.columns], schema=schema))

    columns = _distinct(table.column_names)
    return Table(columns, table.to_batches, _rows_of_arrow, _rows_of_arrow, lambda: table.schema, with_new)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)


def _pandas(given: Any) -> Table:
    names = _distinct([str(name) for name in given.columns])
    own = dict(zip(names, given.columns, strict=True))  # Names need not be texts.

    def arrow(chunk: Any, columns: list[str]) -> pa.Table:
        try:
            found = chunk[[own[name] for name in columns]].set_axis(columns, axis=1)
            return pa.Table.from_pandas(found, preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise TableError(f"{NAME} has a column of which no column of Arrow can be made: {error}") from None

    def rows(chunk: Any, columns: list[str]) -> Iterator[Row]:
        return _rows_of_arrow(arrow(chunk, columns), columns)

    def chunks() -> Iterator[Any]:
        return (given.iloc[begin : begin + CHUNK_ROWS] for begin in range(0, len(given), CHUNK_ROWS))

    def with_new(new: pa.Table) -> Any:
        columns, found = new.to_pandas(), given.assign()
        for name in new.column_names:
            found[name] = columns[name].array
        return found

    return Table(names, chunks, rows, rows, lambda: arrow(given, names).schema, with_new)


def _lazy(given: pl.LazyFrame) -> Table:
    empty = sys.modules["polars"].DataFrame(schema=given.collect_schema())
    # Without lazy, the query would run even if nobody read a chunk.
    return _polars(empty, lambda: given.collect_batches(chunk_size=CHUNK_ROWS, lazy=True), None)


def _polars(
    empty: pl.DataFrame, chunks: Callable[[], Iterable[Any]], with_new: Callable[[pa.Table], Any] | None
) -> Table:
    """empty: a frame with the columns, and no row."""

    def rows(chunk: pl.DataFrame, columns: list[str]) -> Iterator[Row]:
        return chunk.select(columns).iter_rows(named=True)

    def arrow_rows(chunk: pl.DataFrame, columns: list[str]) -> Iterator[Row]:
        return _rows_of_arrow(chunk.to_arrow(), columns)  # Python's own times have no nanoseconds.

    return Table(empty.columns, chunks, rows, arrow_rows, lambda: empty.to_arrow().schema, with_new)


def _rows_of_arrow(chunk: Any, columns: list[str]) -> Iterator[Row]:
    needed = chunk.select(columns)
    for begin in range(0, len(needed), BATCH_ROWS):
        yield from needed.slice(begin, BATCH_ROWS).to_pylist()
