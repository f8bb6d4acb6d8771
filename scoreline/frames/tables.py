"""How rows of tables are read, and get new columns: Arrow, pandas, Polars, and all that gives Arrow's stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet as pq

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.frames.asked import Asking
from scoreline.frames.costs import Cost, cost_of
from scoreline.frames.errors import TableError, as_table_errors
from scoreline.frames.streams import NAME, Calls, TableSource, scored, served, written
from scoreline.runs.formats import Format, Kind, Row, format_of
from scoreline.runs.headings import missing_column
from scoreline.runs.parquet import BATCH_ROWS, TYPES

if TYPE_CHECKING:
    import polars as pl

CHUNK_ROWS = 10_000
"""Rows of a table of Polars that are read at a time."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of some kind."""

    columns: list[str]
    chunks: Callable[[], Iterable[Any]]  # all of its rows
    rows: Callable[[Any, list[str]], Iterable[Row]]  # of a chunk, with some columns
    schema: Callable[[], pa.Schema]
    with_new: Callable[[pa.Table], Any] | None  # the table with new columns; None: it comes in chunks
    can_be_read_again: bool = True

    def source(self, columns: list[str], schema: pa.Schema | None = None) -> TableSource[Any]:
        """Return the rows with some columns. schema: of these, if their types are to be kept."""
        return TableSource(self.chunks(), columns, self.rows, schema)

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


def table_of(given: Any) -> Table:
    """Return how a table of any kind is read. Raises TypeError."""
    if isinstance(given, pa.Table):
        return _arrow(given, given)
    if isinstance(given, pa.RecordBatch):
        return _arrow(pa.Table.from_batches([given]), given)
    polars, pandas = sys.modules.get("polars"), sys.modules.get("pandas")
    if polars is not None and isinstance(given, polars.DataFrame):
        return Table(
            given.columns,
            lambda: given.iter_slices(CHUNK_ROWS),
            _rows_of_polars,
            lambda: given.head(0).to_arrow().schema,
            lambda new: given.hstack(polars.from_arrow(new)),
        )
    if pandas is not None and isinstance(given, pandas.DataFrame):
        return _pandas(given)
    if isinstance(given, pa.RecordBatchReader) or hasattr(given, "__arrow_c_stream__"):
        reader = given if isinstance(given, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(given)
        return Table(reader.schema.names, lambda: reader, _rows_of_arrow, lambda: reader.schema, None, False)
    raise TypeError(f"a {type(given).__name__} is no table of Arrow, pandas or Polars, and gives no Arrow stream")


def check_columns(asking: Asking, columns: list[str]) -> None:
    """Raise TableError if one is missing of these, or stands in a template where it has none of its places."""
    with as_table_errors():
        for name, option in asking.plan.columns.named:
            if name not in columns:
                raise missing_column(NAME, Format.PARQUET, columns, name, option)
        asking.plan.check_templates(NAME, columns)


def with_columns(given: Any, asking: Asking, output: str | None = None, *, restart: bool = False) -> Any:
    """Return a table of the same kind with the new columns. Raises TypeError, TableError and ScorelineError.

    A stream becomes a ``RecordBatchReader``. output: a Parquet file that is written meanwhile, and read then.
    """
    polars = sys.modules.get("polars")
    is_lazy = polars is not None and isinstance(given, polars.LazyFrame)
    table = _lazy(given) if is_lazy else table_of(given)
    check_columns(asking, table.columns)
    models = served(asking)
    asking = asking.of_served(models)
    new = asking.columns(models, table.columns)
    if output is not None:
        with as_table_errors():
            if format_of(output, None, "output") is not Format.PARQUET:
                raise CommandError(f"output must be a Parquet file, and not {output}", ExitCode.USAGE)
        table.check_cost(asking)
        written(asking, table.source(table.columns, table.schema()), output, restart=restart)
        return _read(output, table, new, given if is_lazy else None)
    if is_lazy:
        return _scanned(given, table, asking, new)
    if table.with_new is None:
        return _streamed(table, asking, new)
    table.check_cost(asking)
    return table.with_new(new_of_whole(table, asking, new))


def new_of_whole(table: Table, asking: Asking, new: Mapping[str, Kind], calls: Calls | None = None) -> pa.Table:
    """Return the new columns of a table. calls: to which this one belongs. Raises TableError and ScorelineError."""
    return pa.Table.from_batches(scored(asking, table.source(asking.needed), new, calls), schema_of(new))


def schema_of(new: Mapping[str, Kind]) -> pa.Schema:
    """Return the types of new columns."""
    return pa.schema([(name, TYPES[kind]) for name, kind in new.items()])


def _streamed(table: Table, asking: Asking, new: Mapping[str, Kind]) -> pa.RecordBatchReader:
    table.check_cost(asking)
    source = table.source(asking.needed)
    schema = table.schema()
    for field in schema_of(new):
        schema = schema.append(field)
    pairs = source.beside(scored(asking, source, new))
    batches = (pa.RecordBatch.from_arrays([*chunk.columns, *found.columns], schema=schema) for chunk, found in pairs)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _read(output: str, table: Table, new: Mapping[str, Kind], lazy: Any) -> Any:
    """Return a table with the new columns that are in a file."""
    stored = pq.read_schema(output).names
    # The relevance that a model gives which was trained to rank is its only score, by the name of its class.
    of = {name: name if name in stored else stored[len(table.columns)] for name in new}
    if lazy is not None:
        polars = sys.modules["polars"]
        found = polars.scan_parquet(output).select(
            *table.columns, **{name: polars.col(old) for name, old in of.items()}
        )
        return found.cast(dict(lazy.collect_schema()))
    if table.with_new is not None:
        return table.with_new(pq.read_table(output, columns=[*of.values()]).rename_columns([*of]).cast(schema_of(new)))
    file = pq.ParquetFile(output)
    batches = file.iter_batches(columns=[*table.columns, *of.values()])
    schema = pa.schema([file.schema_arrow.field(old).with_name(name) for name, old in {**_same(table), **of}.items()])
    return pa.RecordBatchReader.from_batches(
        schema, (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)
    )


def _same(table: Table) -> dict[str, str]:
    return {name: name for name in table.columns}


def _lazy(given: pl.LazyFrame) -> Table:
    schema = given.collect_schema()
    empty = sys.modules["polars"].DataFrame(schema=schema)
    return Table(
        list(schema),
        lambda: given.collect_batches(chunk_size=CHUNK_ROWS),
        _rows_of_polars,
        lambda: empty.to_arrow().schema,
        None,
    )


def _scanned(given: pl.LazyFrame, table: Table, asking: Asking, new: Mapping[str, Kind]) -> pl.LazyFrame:
    """Return a lazy frame whose rows are scored when it is collected, and only if their scores are wanted."""
    import polars as pl
    from polars.io.plugins import register_io_source

    schema = {**given.collect_schema(), **pl.from_arrow(schema_of(new).empty_table()).schema}  # type: ignore[union-attr]

    def scan(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted = list(schema) if columns is None else columns
        few = given if rows is None else given.head(rows)
        of_few = _lazy(few)
        if not new.keys() & {*wanted, *(() if predicate is None else predicate.meta.root_names())}:
            found: Iterable[pl.DataFrame] = of_few.chunks()
        else:
            of_few.check_cost(asking)
            source = of_few.source(asking.needed)
            pairs = source.beside(scored(asking, source, new))
            found = (chunk.hstack(pl.from_arrow(scores)) for chunk, scores in pairs)
        for chunk in found:
            kept = chunk if predicate is None else chunk.filter(predicate)
            yield kept.select(wanted)

    return register_io_source(scan, schema=schema, is_pure=True)


def _arrow(table: pa.Table, given: Any) -> Table:
    def with_new(new: pa.Table) -> Any:
        found = table
        for name in new.column_names:
            found = found.append_column(new.schema.field(name), new.column(name))
        return found if given is table else found.combine_chunks().to_batches()[0]

    return Table(table.column_names, table.to_batches, _rows_of_arrow, lambda: table.schema, with_new)


def _pandas(given: Any) -> Table:
    def arrow(chunk: Any, columns: list[str]) -> pa.Table:
        try:
            return pa.Table.from_pandas(chunk[columns], preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise TableError(f"{NAME} has a column of which no column of Arrow can be made: {error}") from None

    def with_new(new: pa.Table) -> Any:
        columns = new.to_pandas()
        return given.assign(**{name: columns[name].array for name in new.column_names})

    return Table(
        [str(name) for name in given.columns],
        lambda: (given.iloc[begin : begin + CHUNK_ROWS] for begin in range(0, len(given), CHUNK_ROWS)),
        lambda chunk, columns: _rows_of_arrow(arrow(chunk, columns), columns),
        lambda: arrow(given, [*given.columns]).schema,
        with_new,
    )


def _rows_of_arrow(chunk: Any, columns: list[str]) -> Iterator[Row]:
    needed = chunk.select(columns)
    for begin in range(0, len(needed), BATCH_ROWS):
        yield from needed.slice(begin, BATCH_ROWS).to_pylist()


def _rows_of_polars(chunk: pl.DataFrame, columns: list[str]) -> Iterator[Row]:
    return chunk.select(columns).iter_rows(named=True)
