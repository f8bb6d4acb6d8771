"""Have the rows of a table scored as they come, in bounded memory, by a run in another thread."""

from __future__ import annotations

import io
import queue
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa
from rich.console import Console

from scoreline.client import Model
from scoreline.client.background import Background
from scoreline.client.mapping import HEAR_SECONDS, outcome
from scoreline.exit_codes import CommandError
from scoreline.frames.asked import Asking
from scoreline.frames.errors import TableError, as_table_errors
from scoreline.runs.beginning import Finished, run
from scoreline.runs.formats import Format, Kind, Row
from scoreline.runs.parquet import TYPES, unheld
from scoreline.runs.run import without_figures
from scoreline.runs.writing import Sink

NAME = "the table"
WINDOWS_READY = 2
"""Windows of rows that are scored and not taken yet."""


class Chunk(Protocol):
    """Some rows of a table of any kind."""

    def __len__(self) -> int: ...
    def slice(self, offset: int, length: int, /) -> Self: ...


C = TypeVar("C", bound=Chunk)


class TableSource(Generic[C]):
    """The rows of a table, with those of its columns that are read; and its chunks, until their scores are there."""

    unit = "row"

    def __init__(
        self,
        chunks: Iterable[C],
        columns: Sequence[str],
        rows: Callable[[C, list[str]], Iterable[Row]],
        schema: Any,
        *,
        keeps: bool,
    ) -> None:
        """columns: those that are read. rows: returns the rows of a chunk with these. schema: Arrow's, if any.

        keeps: whether chunks are kept for :meth:`beside`.
        """
        self.name = NAME
        self.columns: list[str] | None = list(columns)
        self.schema = schema
        self._chunks, self._rows, self._keeps = chunks, rows, keeps
        self._kept: deque[C] = deque()

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        assert self.columns is not None
        number = 0
        for chunk in self._chunks:
            if not len(chunk):
                continue
            if self._keeps:
                self._kept.append(chunk)
            try:
                for row in self._rows(chunk, self.columns):
                    yield number, row
                    number += 1
            except TableError:  # It says already what is wrong.
                raise
            except (ValueError, OverflowError) as error:
                raise unheld(self.name, number, error) from None

    def beside(self, scored: Iterable[pa.RecordBatch]) -> Iterator[tuple[C, pa.RecordBatch]]:
        """Yield the chunks of the table, cut where it is necessary, with the new columns of their rows."""
        for new in scored:
            begin = 0
            while begin < len(new):
                chunk = self._kept.popleft()
                if len(chunk) > len(new) - begin:
                    self._kept.appendleft(chunk.slice(len(new) - begin, len(chunk) - len(new) + begin))
                    chunk = chunk.slice(0, len(new) - begin)
                yield chunk, new.slice(begin, len(chunk))
                begin += len(chunk)

    def share_read(self) -> float | None:
        """Nobody knows."""
        return None

    def close(self) -> None:
        """There is nothing to close."""


class _Ready:
    """Scored rows that wait to be taken, as arrays. A window more waits in the thread that hands it over."""

    def __init__(self) -> None:
        self._found: queue.SimpleQueue[pa.RecordBatch | TableError | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(WINDOWS_READY)
        self._is_given_up = False

    def put(self, batch: pa.RecordBatch) -> None:
        if not self._is_given_up:
            self._room.acquire()
        self._found.put(batch)

    def end(self, error: TableError | None = None) -> None:
        self._found.put(error)

    def give_up(self) -> None:
        """Keep nobody waiting who hands something over, which is one thread at a time."""
        self._is_given_up = True
        self._room.release()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                found = self._found.get(timeout=HEAR_SECONDS)
            except queue.Empty:
                continue  # Ctrl-C is heard now: see `outcome`.
            if found is None:
                return
            if isinstance(found, TableError):
                raise found
            self._room.release()
            yield found


class Calls:
    """What several calls of one function share."""

    def __init__(self) -> None:
        self.warned: set[str] = set()  # what was warned of, and is not said again
        self.under_way: set[_Ready] = set()

    def cancel(self) -> None:
        """Have the calls that are under way end with a TableError, and their jobs be cancelled."""
        for ready in list(self.under_way):
            ready.end(TableError("the call was cancelled"))


class _ArraySink:
    """Takes rows with new columns, and hands these over."""

    def __init__(self, ready: _Ready, columns: Mapping[str, Kind]) -> None:
        self._ready, self._columns = ready, columns

    def resume(self, state: int) -> None:
        assert state == 0

    def write(self, rows: Sequence[Row]) -> int:
        arrays = {name: pa.array([row[name] for row in rows], TYPES[kind]) for name, kind in self._columns.items()}
        self._ready.put(pa.RecordBatch.from_pydict(arrays))
        return 0

    def complete(self) -> None: ...
    def finish(self) -> None: ...
    def remove(self) -> None: ...


def served(asking: Asking) -> list[Model]:
    """Return what the service serves. Raises ScorelineError."""
    client = asking.client(is_reached=asking.was_reached)
    with Background(client) as background:
        return outcome(background.start(client.models()))


def scored(
    asking: Asking, source: TableSource[Any], columns: Mapping[str, Kind], calls: Calls | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the new columns of all rows, in their order. Raises TableError and ScorelineError.

    columns: the new ones. calls: to which this one belongs. Whoever ends the iteration early has the jobs cancelled,
    unless they are those of a named run.
    """
    ready, client, calls = _Ready(), asking.client(), calls or Calls()
    with Background(client) as background, as_table_errors():
        console = Console(file=io.StringIO(), quiet=True)

        def opened(new: Mapping[str, Kind]) -> Sink:
            if new != columns:
                message = "the service's template or model has other labels than when it was asked first: begin again"
                raise CommandError(message)
            return _ArraySink(ready, columns)

        running = background.start(run(asking.plan, client, console, source, opened))
        running.add_done_callback(lambda _: ready.end())
        calls.under_way.add(ready)
        try:
            yield from ready
        finally:
            calls.under_way.discard(ready)
            ready.give_up()
        _warn(running.result(), calls.warned)


def written(asking: Asking, source: TableSource[Any], output: str, *, restart: bool) -> None:
    """Have a Parquet file written of all rows, or what is left of it to do. Raises TableError and ScorelineError."""
    plan = replace(asking.plan, target=output, target_format=Format.PARQUET, restart=restart)
    client = asking.client()
    with Background(client) as background, as_table_errors():
        running = background.start(run(plan, client, Console(file=io.StringIO(), quiet=True), source))
        _warn(outcome(running), set())


def _warn(finished: Finished, warned: set[str]) -> None:
    for warning in finished.warnings:
        # What differs only in its figures, and in the rows that it names, is the same.
        if (kind := without_figures(warning).partition(", such as ")[0]) not in warned:
            warned.add(kind)
            warnings.warn(warning, stacklevel=5)
