"""Begin a run, or go on with one: open its files, and look at the service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from scoreline.client import AsyncClient, Model
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.display import RunDisplay
from scoreline.runs.formats import Format
from scoreline.runs.headings import missing_column
from scoreline.runs.journal import Journal, Written
from scoreline.runs.plan import Plan, new_columns
from scoreline.runs.reading import Source, open_source
from scoreline.runs.run import Opened, Run, all_columns, in_a_thread, unwritten_windows
from scoreline.runs.writing import open_sink
from scoreline.templates import labels_of_template

MODEL = "model"  # the name in the journal of what the service served when the run began
LOOK_SECONDS = 0.1  # how often this looks whether the service is away


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run has come to."""

    written: Written
    warnings: list[str] = field(default_factory=list)  # of the service


async def run(plan: Plan, client: AsyncClient, console: Console) -> Finished:
    """Do what a plan says, or the rest of it. Raises CommandError and ScorelineError."""
    source = open_source(plan.source, plan.source_format)
    try:
        _check_columns(source, plan)
        _check_target(plan)
        journal = Journal(plan.journal, plan.fingerprint(), restart=plan.restart)
        try:
            models = await _served_models(client, journal, console)
            labels = plan.labels or tuple(labels_of_template(models, plan.options["template"]))
            _check_model(models, journal)
            finished = await _run(plan, source, journal, labels, client, console)
        except BaseException:
            if journal.is_empty:
                journal.remove()
            else:
                journal.close()
            raise
        journal.remove()
        return finished
    finally:
        source.close()


async def _run(
    plan: Plan, source: Source, journal: Journal, labels: tuple[str, ...], client: AsyncClient, console: Console
) -> Finished:
    windows = unwritten_windows(source, plan, journal.written)
    first = await in_a_thread(lambda: next(windows, None))
    read = [] if first is None else [first]
    taken = source.columns if source.columns is not None else all_columns(read)
    has_own_columns = source.columns is None and plan.target_format is Format.JSON_LINES
    columns = None if has_own_columns else journal.remember("columns", taken)
    names = new_columns(plan, labels, taken)
    sink = open_sink(plan.target, plan.target_format, columns, names, source.schema)
    if journal.is_resumed:
        written = journal.written.rows
        console.print(f"Going on: {written:,} rows are written already.", highlight=False, soft_wrap=True)
    with RunDisplay(console) as display:
        going = Run(Opened(plan, source, journal, labels, names, columns, sink), client, display, read)
        sink.resume(journal.written.state)
        try:
            written_rows = await going.execute(windows)
        except BaseException:
            if journal.is_empty:
                sink.remove()
            raise
        sink.finish()
    return Finished(written_rows, going.warnings)


def _check_columns(source: Source, plan: Plan) -> None:
    if source.columns is None:
        return
    for name, option in ((plan.columns.query, "--query-column"), (plan.columns.item, "--item-column")):
        if name is not None and name not in source.columns:
            raise missing_column(source.name, plan.source_format, source.columns, name, option)


def _check_target(plan: Plan) -> None:
    """Raise CommandError if a file is in the way, unless it is to be replaced, or if there is no folder for it."""
    if plan.journal is None:
        return
    target = Path(plan.target)
    if not plan.restart and target.exists() and not plan.journal.exists():
        raise CommandError(f"{target} is there already: --restart replaces it", ExitCode.USAGE)
    if not target.absolute().parent.is_dir():
        raise CommandError(f"there is no folder {target.absolute().parent} for the output", ExitCode.USAGE)


async def _served_models(client: AsyncClient, journal: Journal, console: Console) -> list[Model]:
    """Return what the service serves. Raises ScorelineError.

    A service that has answered an earlier process of this run is waited for as one that has answered this process.
    """
    if not journal.knows(MODEL):
        return await client.models()
    client.service.was_reached = True
    asking = asyncio.create_task(client.models())
    try:
        while not (await asyncio.wait([asking], timeout=LOOK_SECONDS))[0]:
            if client.service.is_away:
                console.print(f"Waiting for the service at {client.service.url}.", highlight=False, soft_wrap=True)
                break
        return await asking
    finally:
        asking.cancel()


def _check_model(models: Sequence[Model], journal: Journal) -> None:
    """Raise CommandError if the service serves another model than when the run began."""
    served = [model.id for model in models]
    began_with = journal.remember(MODEL, served)
    if began_with != served:
        raise CommandError(
            f"the service serves {', '.join(served)} now, and this run began with {', '.join(began_with)}: "
            "--restart scores all rows again",
            ExitCode.USAGE,
        )
