"""Read, score and write the rows of a file, in the order of the file and in bounded memory.

At most two windows of rows are in memory: while the last jobs of one are being scored, those of the next are submitted.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from scoreline.client import AsyncClient
from scoreline.client.doubts import Doubts
from scoreline.client.job_objects import Job
from scoreline.client.results import Provenance
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.display import Progressed, RunDisplay
from scoreline.runs.formats import Row
from scoreline.runs.journal import Journal, Written
from scoreline.runs.plan import Empty, Plan, Remedy
from scoreline.runs.prompts import EmptyTextError
from scoreline.runs.reading import Source
from scoreline.runs.scoring import Cells, GroupScorer, Listener, Refusal
from scoreline.runs.windows import Group, Window
from scoreline.runs.writing import Sink

MODEL = "model"
"""The name in the journal of the fingerprints of the model that has scored the first rows."""

WINDOWS_AT_ONCE = 2
SHOW_SECONDS = 0.25
MAX_WARNINGS = 5
NAMED_ROWS = 10  # in one message

_FIGURES = re.compile(r"\d[\d.e+-]*")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened:
    """What a run works with."""

    plan: Plan
    source: Source
    journal: Journal
    labels: Sequence[str]
    new_columns: Sequence[str]  # one for each label, and what else belongs to the scores
    columns: Sequence[str] | None  # of the input; None if each row may have its own
    sink: Sink


class _ScoredWindow:
    """A window, and the cells of its rows as they come."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.cells: list[Cells | None] = [None] * len(window.rows)  # None: not known yet, or to be left empty
        self.refusals: dict[int, Refusal] = {}  # why rows can't be scored, by their places
        self.prompt_tokens = self.shared_tokens = 0
        self._open_groups = 1  # one too many until all are known
        self._done = asyncio.Event()

    def add_group(self) -> None:
        self._open_groups += 1

    def end_group(self) -> None:
        self._open_groups -= 1
        if self._open_groups == 0:
            self._done.set()

    async def wait(self) -> None:
        """Wait until all of its groups have ended."""
        await self._done.wait()


class Run:
    """A run in this process."""

    def __init__(self, opened: Opened, client: AsyncClient, display: RunDisplay, first: Sequence[Window]) -> None:
        """first: windows that were read already."""
        self._plan, self._source, self._journal = opened.plan, opened.source, opened.journal
        self._opened, self._display = opened, display
        self._scorer = GroupScorer(client, opened.journal, opened.plan, opened.labels)
        self._first = list(first)
        before = opened.journal.written
        self._seconds_before = before.seconds
        self._progressed = Progressed(
            before.rows, before.rows, before.rows, None, before.prompt_tokens, before.shared_tokens
        )
        self._warnings: dict[str, str] = {}  # of the service, by their text without figures
        # About the rows of this process; None if they are no reason for any.
        self.doubts: Doubts | None = Doubts() if opened.plan.doubts_scores else None

    @property
    def warnings(self) -> list[str]:
        """The warnings of the service, in the order in which they came, and what the scores of all rows show."""
        if self.doubts is None:
            return list(self._warnings.values())
        row_named = f"{self._source.unit} {{}}".format
        labels = [repr(label) for label in self._opened.labels]
        return [*self._warnings.values(), *self.doubts.warnings("rows", row_named, labels.__getitem__)]

    @property
    def jobs_under_way(self) -> int:
        """How many jobs go on at the service if this process ends now."""
        return len(self._scorer.under_way)

    async def execute(self, windows: Iterator[Window]) -> Written:
        """Score all rows that are not written yet, and return how far the run has got.

        Raises CommandError and ScorelineError, after which the run can be resumed.
        """
        unwritten = asyncio.Semaphore(WINDOWS_AT_ONCE)
        in_flight = asyncio.Semaphore(self._plan.concurrency)
        to_write: asyncio.Queue[_ScoredWindow | None] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as tasks:
                ticker = tasks.create_task(self._show())
                writer = tasks.create_task(self._write(to_write, unwritten))
                while True:
                    await unwritten.acquire()
                    window = self._first.pop(0) if self._first else await in_a_thread(lambda: next(windows, None))
                    if window is None:
                        break
                    await self._submit(_ScoredWindow(window), tasks, in_flight, to_write)
                self._progressed.share_read = 1.0
                to_write.put_nowait(None)
                await writer
                ticker.cancel()
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        finally:
            await self._scorer.close()
            self._journal.add_seconds(self._seconds_before + self._display.seconds)
        return self._journal.written

    async def _submit(
        self,
        scored: _ScoredWindow,
        tasks: asyncio.TaskGroup,
        in_flight: asyncio.Semaphore,
        to_write: asyncio.Queue[_ScoredWindow | None],
    ) -> None:
        window = scored.window
        self._progressed.rows_read += len(window.rows)
        self._progressed.share_read = window.share_read
        if self._plan.limit is not None:
            self._progressed.share_read = max(window.share_read or 0.0, self._progressed.rows_read / self._plan.limit)
        listener = self._listener(scored)
        groups, wrong, empty = window.groups(self._plan.columns)
        check_empty(self._plan, self._source, window, empty)
        to_write.put_nowait(scored)
        for place, message in wrong.items():
            listener.refused(place, Refusal(message, is_too_long=False))
        for place, error in empty.items():
            self._skip(scored, place, Refusal(str(error), is_too_long=False, is_empty=True))
        for group in groups:
            await in_flight.acquire()
            scored.add_group()
            tasks.create_task(self._score(group, scored, listener, in_flight))
        scored.end_group()

    async def _score(
        self, group: Group, scored: _ScoredWindow, listener: Listener, in_flight: asyncio.Semaphore
    ) -> None:
        try:
            await self._scorer.score(scored.window.number, group, listener)
            scored.end_group()
        finally:
            in_flight.release()

    def _skip(self, scored: _ScoredWindow, place: int, refusal: Refusal) -> None:
        scored.refusals[place] = refusal
        self._progressed.rows += 1

    def _listener(self, scored: _ScoredWindow) -> Listener:
        def on_scored(place: int, cells: Cells) -> None:
            scored.cells[place] = cells

        def on_refused(place: int, refusal: Refusal) -> None:
            check_remedy(refusal, self._plan, self._source, scored.window.numbers[place])
            self._skip(scored, place, refusal)

        def on_counted(job: Job, rows: int) -> None:
            check_weights(job, self._journal)
            scored.prompt_tokens += job.prompt_tokens
            scored.shared_tokens += job.cached_tokens
            self._progressed.rows += rows
            self._progressed.prompt_tokens += job.prompt_tokens
            self._progressed.shared_tokens += job.cached_tokens
            if job.raw.get("label_scoring") == "sequence":
                self.doubts = None  # as the service has none about labels of several tokens
            for warning in job.warnings:
                # Warnings that differ only in their figures are shown once.
                if len(self._warnings) < MAX_WARNINGS:
                    self._warnings.setdefault(without_figures(warning), warning)

        return Listener(on_scored, on_refused, on_counted)

    async def _write(self, to_write: asyncio.Queue[_ScoredWindow | None], unwritten: asyncio.Semaphore) -> None:
        """Write windows in their order."""
        while (scored := await to_write.get()) is not None:
            await scored.wait()
            rows = self._with_cells(scored)
            state = await in_a_thread(lambda rows=rows: self._opened.sink.write(rows))  # type: ignore[misc]
            before = self._journal.written
            too_long = sum(refusal.is_too_long for refusal in scored.refusals.values())
            empty = sum(refusal.is_empty for refusal in scored.refusals.values())
            self._journal.count_window(
                Written(
                    windows=before.windows + 1,
                    rows=before.rows + len(rows),
                    state=state,
                    too_long=before.too_long + too_long,
                    empty=before.empty + empty,
                    failed=before.failed + len(scored.refusals) - too_long - empty,
                    prompt_tokens=before.prompt_tokens + scored.prompt_tokens,
                    shared_tokens=before.shared_tokens + scored.shared_tokens,
                    seconds=self._seconds_before + self._display.seconds,
                ),
                scored.window.digests,
                self._errors(scored, before.rows),
            )
            unwritten.release()

    def _errors(self, scored: _ScoredWindow, rows_before: int) -> dict[int, dict[str, Any]]:
        """Return why cells of a window are empty, by the places of the rows in the output."""
        return {
            rows_before + place: {
                self._source.unit: scored.window.numbers[place],
                "index": rows_before + place,
                "outcome": refusal.outcome,
                "reason": refusal.message,
            }
            for place, refusal in scored.refusals.items()
        }

    def _with_cells(self, scored: _ScoredWindow) -> list[Row]:
        """Return the rows of a window with their new columns. Raises CommandError."""
        names, known = self._opened.new_columns, self._opened.columns
        labels = len(self._opened.labels)
        empty: Cells = [None] * len(names)
        rows = []
        for number, row, cells in zip(scored.window.numbers, scored.window.rows, scored.cells, strict=True):
            check_names(self._source, number, row, known, names)
            rows.append(row | dict(zip(names, empty if cells is None else cells, strict=True)))
            if cells is not None and self.doubts is not None:
                self.doubts.add(number, [cell or 0.0 for cell in cells[:labels]], cells[labels])
        return rows

    async def _show(self) -> None:
        while True:
            self._progressed.waits = self._scorer.waits
            self._display.show(self._progressed)
            await asyncio.sleep(SHOW_SECONDS)


def without_figures(warning: str) -> str:
    """Return what a warning has in common with those that differ only in their figures."""
    return _FIGURES.sub("#", warning)


def check_remedy(refusal: Refusal, plan: Plan, source: Source, number: int) -> None:
    """Raise CommandError for a row that can't be scored, unless the plan leaves its cells empty.

    number: that of the row.
    """
    if (plan.on_too_long if refusal.is_too_long else plan.on_error) is Remedy.FAIL:
        option = "--on-too-long" if refusal.is_too_long else "--on-error"
        raise CommandError(
            f"{source.name}, {source.unit} {number}: {refusal.message}; with {option} skip its cells are left empty",
            refusal.exit_code,
        )


def check_empty(plan: Plan, source: Source, window: Window, empty: Mapping[int, EmptyTextError]) -> None:
    """Raise CommandError if rows of a window lack a text, unless the plan has something else done with them."""
    if empty and plan.empty is Empty.FAIL:
        raise empty_rows(source, window, empty)


def empty_rows(source: Source, window: Window, empty: Mapping[int, EmptyTextError]) -> CommandError:
    """Return the error for rows of a window that lack a text."""
    numbers = [str(window.numbers[place]) for place in empty]
    more = f" and {len(numbers) - NAMED_ROWS:,} more" if len(numbers) > NAMED_ROWS else ""
    rows = f"{source.unit}{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:NAMED_ROWS])}{more}"
    columns = " or ".join(dict.fromkeys(repr(error.column) for error in empty.values()))
    return CommandError(
        f"{source.name}, {rows}: there is no text in {columns}; with --empty skip the cells of such rows are left "
        "empty, and with --empty score they are scored all the same",
        ExitCode.REFUSED,
    )


def check_weights(job: Job, journal: Journal) -> None:
    """Raise CommandError if a model with other weights has scored the job than the jobs before."""
    for provenance in job.provenance or ():
        if provenance is None:
            continue  # a worker that does not know its weights
        began_with = journal.remember(MODEL, fingerprints(provenance))
        if began_with["weights_fingerprint"] != provenance.weights_fingerprint:
            raise CommandError(
                "the weights of the model are others than when this run began: --restart scores all rows with them"
            )


def fingerprints(provenance: Provenance) -> dict[str, Any]:
    """Return what says which model has scored some rows."""
    names = ("model", "revision", "weights_fingerprint", "tokenizer_fingerprint")
    return {name: getattr(provenance, name) for name in names}


def check_names(source: Source, number: int, row: Row, known: Sequence[str] | None, new: Sequence[str]) -> None:
    """Raise CommandError for a row of JSON lines with columns that can't be written."""
    if source.columns is not None:
        return
    for name in row:
        if name in new:
            problem = f"it has a column {name!r} already: give the new ones another name with --column-prefix"
        elif known is not None and name not in known:
            problem = f"it has a column {name!r}, which no row before had: write JSON lines, where each row has its own"
        else:
            continue
        raise CommandError(f"{source.name}, {source.unit} {number}: {problem}", ExitCode.REFUSED)


def all_columns(windows: Sequence[Window]) -> list[str]:
    """Return the columns of the rows of windows, in the order in which they first occur."""
    return list(dict.fromkeys(name for window in windows for row in window.rows for name in row))


async def in_a_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread that does not keep this process alive, as one that reads from a pipe would."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def call() -> None:
        try:
            value = function()
        except BaseException as error:
            given: tuple[Callable[[Any], None], Any] = (future.set_exception, error)
        else:
            given = (future.set_result, value)
        with suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(settle, *given)

    threading.Thread(target=call, daemon=True).start()
    return await future


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, which may be of groups."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first
