"""Begin a run, or go on with one: open its files, and look at the service."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from scoreline.client import DEFAULT_URL, AsyncClient, InvalidRequest, Model, ScorelineError, Template
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.display import RunDisplay, label_mass_text
from scoreline.runs.formats import STANDARD, Format, Kind
from scoreline.runs.headings import missing_column
from scoreline.runs.journal import Journal, Written, name_of_earlier_run
from scoreline.runs.plan import Plan, new_columns
from scoreline.runs.reading import Source, open_source
from scoreline.runs.run import MODEL, Opened, Run, all_columns, in_a_thread
from scoreline.runs.scoring import RUN
from scoreline.runs.windows import unwritten_windows
from scoreline.runs.writing import Sink, open_sink, write_lines
from scoreline.templates import model_of, pinned, template_of

SERVED = "served"  # the name in the journal of what the service served when the run began
MAX_ERRORS = 1_000  # rows that are named by the command itself; the file beside the output names all
CANCEL_SECONDS = 5.0  # for how long this tries to cancel the jobs of a run that ends without its output
LOOK_SECONDS = 0.1  # how often this looks whether the service is away


OpenSink = Callable[[Mapping[str, Kind]], Sink]
"""Returns where rows with these new columns are written."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run has come to."""

    run: str  # its name
    written: Written
    errors: list[dict[str, Any]]  # why cells are empty, of the first MAX_ERRORS such rows
    warnings: Sequence[str]  # of the service
    model: Mapping[str, Any] | None  # the fingerprints of the one that has scored the rows; None: none has said them


async def run(
    plan: Plan, client: AsyncClient, console: Console, source: Source | None = None, opened: OpenSink | None = None
) -> Finished:
    """Do what a plan says, or the rest of it. Raises CommandError and ScorelineError.

    source: of the rows, if it is not the file that the plan names. opened: returns where rows are written, if that is
    no file.
    """
    check_input(plan)
    source = source or open_source(plan.source, plan.source_format)
    try:
        check_columns(source, plan)
        _check_folder(plan)
        if plan.restart:
            await _cancel_earlier(plan, client, console)
        shared = None if plan.shared_run is None else (plan.shared_run, plan.asked)
        journal = Journal(plan.journal, plan.fingerprint(), plan.files, restart=plan.restart, shared=shared)
        try:
            warnings: Sequence[str] = ()
            if not journal.is_finishing:
                _check_target(plan, journal)
                models = await _served_models(client, journal, console)
                model, name = model_of(models, plan.options.get("model")), plan.options.get("template")
                template = None if name is None else template_of(model, name)
                plan, labels = plan.of_served(models)
                _check_served(model, template, labels, journal)
                if template is not None:
                    # Its file may be changed while this process goes on: then the service refuses the next job.
                    plan = replace(plan, options={**plan.options, "template": pinned(template)})
                warnings = await _run(plan, source, journal, labels, client, console, opened)
            if opened is None:
                finish(plan, journal)
            scored_by, errors = journal.recall(MODEL), list(journal.errors(MAX_ERRORS))
            finished = Finished(journal.run_name, journal.written, errors, warnings, scored_by)
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
    plan: Plan,
    source: Source,
    journal: Journal,
    labels: tuple[str, ...],
    client: AsyncClient,
    console: Console,
    opened: OpenSink | None,
) -> list[str]:
    """Write all rows that are not written yet, and return the warnings of the service."""
    windows = unwritten_windows(source, plan.window, journal, plan.limit)
    first = await in_a_thread(lambda: next(windows, None))
    read = [] if first is None else [first]
    taken = source.columns if source.columns is not None else all_columns(read)
    plan.check_templates(source.name, taken)
    has_own_columns = source.columns is None and plan.target_format is Format.JSON_LINES
    if not journal.written.windows:
        journal.note("columns", taken)
    columns = None if has_own_columns else journal.remember("columns", taken)
    names = new_columns(plan, labels, taken)
    sink = opened(names) if opened is not None else sink_of(plan, columns, names, source.schema)
    how_far = f"goes on: {journal.written.rows:,} rows are written already." if journal.is_resumed else "begins."
    console.print(f"The run {journal.run_name} {how_far}", highlight=False, markup=False, soft_wrap=True)
    with RunDisplay(console) as display:
        going = Run(Opened(plan, source, journal, labels, [*names], columns, sink), client, display, read)
        if journal.is_resumed and not journal.written.windows:
            sink.remove()
        sink.resume(journal.written.state)
        try:
            await going.execute(windows)
        except BaseException as error:
            # Where an option is wrong, there is nothing to go on with.
            journal.has_unnoted_jobs = going.jobs_under_way > 0 and not isinstance(error, InvalidRequest)
            if journal.is_empty:
                sink.remove()
            if going.jobs_under_way:
                await _leave(going.jobs_under_way, plan, journal, client, display)
            raise
        if going.doubts is not None and (shares := going.doubts.quantiles(0.1, 0.5, 0.9)):
            display.print(label_mass_text(shares))
        sink.complete()
    _check_target(plan, journal)
    journal.begin_finishing()
    return going.warnings


async def _leave(jobs: int, plan: Plan, journal: Journal, client: AsyncClient, display: RunDisplay) -> None:
    """Cancel the jobs of a run that can't be resumed. Say of those of another run that they go on."""
    if (plan.journal is None or journal.is_empty) and plan.shared_run is None:
        with suppress(ScorelineError, TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await client.cancel_all(metadata={RUN: journal.run_name})
                return
    url = "" if client.service.url == DEFAULT_URL else f" --url {shlex.quote(client.service.url)}"
    stop = f"`scoreline jobs cancel --run {journal.run_name}{url}` stops them"
    display.print(f"{jobs:,} {'job goes' if jobs == 1 else 'jobs go'} on without this command: {stop}.")


async def _cancel_earlier(plan: Plan, client: AsyncClient, console: Console) -> None:
    """Cancel what goes on of the run whose journal is thrown away. Raises CommandError and ScorelineError."""
    name = name_of_earlier_run(plan.journal)
    if name is not None and (cancelled := await client.cancel_all(metadata={RUN: name})):
        words = f"{len(cancelled):,} jobs of the run {name} are cancelled."
        console.print(words, highlight=False, markup=False, soft_wrap=True)


def finish(plan: Plan, journal: Journal) -> None:
    """Give the files of a run their names. After a kill, it can be done again. Raises CommandError and OSError."""
    if plan.errors is not None:
        if journal.written.too_long or journal.written.failed or journal.written.empty:
            write_lines(plan.errors, journal.errors())
        elif journal.replaces:
            plan.errors.unlink(missing_ok=True)
    sink_of(plan, (), {}, None).finish()


def sink_of(plan: Plan, columns: Sequence[str] | None, names: Mapping[str, Kind], schema: Any) -> Sink:
    """Return where a plan has its rows written. Raises CommandError."""
    return open_sink(plan.target, plan.target_format, columns, names, schema, escape_formulas=plan.escape_formulas)


def check_columns(source: Source, plan: Plan) -> None:
    """Raise CommandError if a file lacks a column."""
    if source.columns is None:
        return
    for name, option in plan.columns.named:
        if name not in source.columns:
            raise missing_column(source.name, plan.source_format, source.columns, name, option)


def check_input(plan: Plan) -> None:
    """Raise CommandError if the run would write where it reads."""
    for path in plan.touched if plan.source != STANDARD else ():
        with suppress(OSError):  # one of them is not there
            if path.samefile(plan.source):
                message = f"{plan.source} is the input, and -o {plan.target} would write there: name another output"
                raise CommandError(message, ExitCode.USAGE)


def _check_folder(plan: Plan) -> None:
    """Raise CommandError if there is no folder for the output."""
    folder = Path(plan.target).absolute().parent
    if plan.journal is not None and not folder.is_dir():
        raise CommandError(f"there is no folder {folder} for the output", ExitCode.USAGE)


def _check_target(plan: Plan, journal: Journal) -> None:
    """Raise CommandError if a finished file is in the way, unless it is to be replaced."""
    if plan.errors is None or journal.replaces:
        return
    for path in (Path(plan.target), plan.errors):
        if path.exists():
            what_to_do = "move it away" if journal.is_resumed else "--restart replaces it"
            raise CommandError(f"{path} is there already: {what_to_do}", ExitCode.USAGE)


async def _served_models(client: AsyncClient, journal: Journal, console: Console) -> list[Model]:
    """Return what the service serves. Raises ScorelineError.

    A service that has answered an earlier process of this run is waited for as one that has answered this process.
    """
    if journal.recall(SERVED) is None:
        return await client.models()
    client.service.was_reached = True
    asking = asyncio.create_task(client.models())
    try:
        while not (await asyncio.wait([asking], timeout=LOOK_SECONDS))[0]:
            if client.service.is_away:
                console.print(
                    f"Waiting for the service at {client.service.url}.", highlight=False, markup=False, soft_wrap=True
                )
                break
        return await asking
    finally:
        asking.cancel()


def _check_served(model: Model, template: Template | None, labels: Sequence[str], journal: Journal) -> None:
    """Raise CommandError if a request means another model or template than when the run began."""
    served: dict[str, Any] = {
        "models": [model.id],  # Earlier versions have listed all that were served.
        "template": None if template is None else template.digest,
        "labels": list(labels),
    }
    began_with = journal.remember(SERVED, served)
    if model.id in began_with["models"] and began_with | {"models": served["models"]} == served:
        return
    if model.id not in began_with["models"]:
        what = (
            f"the service serves {model.id} now, and this run began with {', '.join(began_with['models'])}: "
            "--restart scores all rows again"
        )
    else:
        name = "" if template is None else f" {template.name}"
        what = (
            f"the template{name} of the service was changed since this run began: put its file back as it was and "
            "restart the service, or score all rows by the changed one with --restart"
        )
    raise CommandError(what, ExitCode.USAGE)
