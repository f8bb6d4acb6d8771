"""The commands that look after jobs: wait for them, list, show, watch and cancel them, and read their scores."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain, islice, repeat
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scoreline.client import DEFAULT_URL, Client, ItemLikelihood, ItemScores, Job, JobStatus
from scoreline.commands.options import USING, JsonOption, UrlOption
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.formats import STANDARD, Format, format_of
from scoreline.runs.scoring import RUN
from scoreline.runs.writing import Sink, open_document, open_sink
from scoreline.terminal.printable import printable

app = typer.Typer()
jobs_app = typer.Typer(help="List, show, watch and cancel jobs.", no_args_is_help=True)
app.add_typer(jobs_app, name="jobs", rich_help_panel=USING)

WATCH_SECONDS = 1.0
ROWS_AT_ONCE = 1_000
_OF_ITEM = ("label_mass", "relevance", "action")
"""What an item may have besides numbers of each label."""

OF_LIKELIHOODS = ("logprob", "num_tokens", "is_greedy")
"""The columns of a job of likelihoods."""

Scored = ItemScores | ItemLikelihood

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The id of a job.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many, the newest first.")]


class ResultFormat(StrEnum):
    """How scores are written. JSON is one document, all others are rows."""

    CSV = "csv"
    TSV = "tsv"
    JSON_LINES = "jsonl"
    PARQUET = "parquet"
    JSON = "json"


@app.command("wait", rich_help_panel=USING)
def wait_command(
    job: JobArgument,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="Seconds to wait; then the exit code is 124.")] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Wait for a job to succeed. A restart of the service meanwhile does no harm.

    The exit code is 6 if the job failed, expired or was cancelled.
    """
    with Client(url) as client:
        ended = client.wait(job, timeout, bar=sys.stderr.isatty())
    print(json.dumps(ended.raw) if as_json else f"{ended.id} {ended.status}: {ended.total_items:,} items")


@app.command("results", rich_help_panel=USING)
def results_command(
    job: JobArgument,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="-: standard output.")] = STANDARD,
    result_format: Annotated[
        ResultFormat | None, typer.Option("--format", help="If the name of the file does not tell. Default: jsonl.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="A name for the column of a label, in their order.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="What is scored so far of a job that has not succeeded.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Read the scores of a job: a row for each item, with its index and a column for each label.

    A job of likelihoods has the columns logprob, num_tokens and is_greedy.
    """
    if as_json:
        if result_format not in (None, ResultFormat.JSON):
            raise CommandError(
                f"--json is --format json, and --format is {result_format}: leave one out", ExitCode.USAGE
            )
        result_format = ResultFormat.JSON
    with Client(url) as client:
        found = client.get(job)
        if found.kind == "decision":
            message = f"{job} is a job of a decision: `scoreline jobs show {job} --json` has its answers"
            raise CommandError(message, ExitCode.USAGE)
        if not partial and found.status != "succeeded":
            code = ExitCode.JOB_FAILED if found.ended else ExitCode.FAILED
            raise CommandError(f"{job} is {found.status}: --partial reads what is scored so far", code)
        scores = client.scores(job) if found.kind == "score" else client.likelihoods(job)
        if result_format is ResultFormat.JSON or (result_format is None and output.lower().endswith(".json")):
            _write_document(scores, output)
            return
        chosen = None if result_format is None else Format(result_format)
        if chosen is None and output == STANDARD:
            chosen = Format.JSON_LINES
        _write_rows(scores, output, format_of(output, chosen, "--format"), label)


def _write_rows(scores: Iterator[Scored], output: str, file_format: Format, labels: Sequence[str] | None) -> None:
    first = next(scores, None)
    names = _column_names(first, labels)
    rest = scores if first is None else chain([first], scores)
    _write(open_sink(output, file_format, ["index", *names], {}, None), (_row(item, names) for item in rest), output)


def _write_document(scores: Iterator[Scored], output: str) -> None:
    _write(open_document(output), map(_fields, scores), output)


def _write(sink: Sink, rows: Iterator[dict[str, Any]], output: str) -> None:
    """Write rows. A file gets its name once it is complete."""
    shown = "standard output" if output == STANDARD else output
    try:
        sink.resume(0)
        try:
            while some := list(islice(rows, ROWS_AT_ONCE)):
                sink.write(some)
            sink.complete()
            sink.finish()
        except BaseException:
            sink.remove()
            raise
    except (BrokenPipeError, TimeoutError):
        raise
    except OSError as error:
        raise CommandError(f"{shown} can't be written: {error.strerror or error}") from None


def _column_names(first: Scored | None, labels: Sequence[str] | None) -> list[str]:
    """Return the names of the columns: of the scores, and of what else the job was asked for."""
    if first is None:
        return []
    if isinstance(first, ItemLikelihood):
        if labels:
            raise CommandError("a job of likelihoods has no labels: leave out --label", ExitCode.USAGE)
        return list(OF_LIKELIHOODS)
    count = len(first.scores)
    if labels and len(labels) != count:
        raise CommandError(f"there are {len(labels)} names, and the job has {count} labels", ExitCode.USAGE)
    names = list(labels or (f"score_{m}" for m in range(count)))
    for kind, name in (("logprobs", "logprob"), ("logits", "logit"), ("calibrated", "calibrated")):
        if getattr(first, kind) is not None:
            names += [f"{name}_{m}" if not labels else f"{name} {labels[m]}" for m in range(count)]
    return names + [name for name in _OF_ITEM if getattr(first, name) is not None]


def _row(item: Scored, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(item, ItemLikelihood):
        return {"index": item.index, **{name: getattr(item, name) for name in names}}
    values: list[object] = [*item.scores, *(item.logprobs or ()), *(item.logits or ()), *(item.calibrated or ())]
    values += [value for name in _OF_ITEM if (value := getattr(item, name)) is not None]
    if len(values) != len(names):
        raise CommandError("the items of this job have labels of their own: read them with --format json")
    return {"index": item.index, **dict(zip(names, values, strict=True))}


def _fields(item: Scored) -> dict[str, Any]:
    """Return what is known of an item, as a row of a JSON document."""
    fields = {name: getattr(item, name) for name in item.__slots__}
    return {name: value for name, value in fields.items() if value is not None}


@jobs_app.command("list")
def list_command(
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs of this status.")] = None,
    batch: Annotated[str | None, typer.Option(help="The jobs of a batch instead, in the order of its lines.")] = None,
    calls: Annotated[bool, typer.Option("--calls", help="Calls, such as of `scoreline score`, instead.")] = False,
    limit: LimitOption = 20,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """List jobs, the newest first."""
    with Client(url) as client:
        jobs = list(islice(client.jobs(status=status, batch=batch, calls=calls, page_jobs=min(limit, 100)), limit))
    if as_json:
        print(json.dumps([job.raw for job in jobs]))
        return
    _console().print(_table(jobs))


@jobs_app.command("show")
def show_command(job: JobArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show a job."""
    with Client(url) as client:
        found = client.get(job)
    if as_json:
        print(json.dumps(found.raw))
        return
    lines = {
        "id": found.id,
        "status": found.status,
        "error": ": ".join(found.error) if found.error else None,
        "model": found.model,
        "priority": found.priority,
        "items": f"{found.scored_items:,} of {found.total_items:,} scored"
        + (f", {found.reused_items:,} of them not computed again" if found.reused_items else ""),
        "tokens": f"{found.prompt_tokens:,}, of which {found.cached_tokens:,} did not have to be computed",
        "created": _time(found.created_at),
        "started": _time(found.started_at),
        "finished": _time(found.finished_at),
        "metadata": ", ".join(f"{name}={value}" for name, value in found.metadata.items()) or None,
    }
    table = Table.grid(padding=(0, 2))
    for name, value in lines.items():
        if value is not None:
            table.add_row(Text(name, style="dim"), Text(printable(value)))
    for warning in found.warnings:
        table.add_row(Text("warning", style="yellow"), Text(printable(warning)))
    Console().print(table)


@jobs_app.command("watch")
def watch_command(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="The id of a job. Default: all that go on.")
    ] = None,
    limit: LimitOption = 20,
    url: UrlOption = DEFAULT_URL,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a job as a line of JSON whenever it has changed.")
    ] = False,
) -> None:
    """Show the progress of a job until it has ended, or that of all jobs until Ctrl-C."""
    console = _console()
    changes = _ChangesAsJson()
    with Client(url) as client:
        if job is not None:
            ended = client.wait(job, progress=changes.tell if as_json else None, bar=sys.stderr.isatty())
            if not as_json:
                console.print(_table([ended]))
            return
        states: Iterator[list[Job]] = (
            list(islice(client.jobs(page_jobs=min(limit, 100)), limit)) for _ in repeat(None)
        )
        if as_json:
            for jobs in states:
                changes.tell(*reversed(jobs))
                time.sleep(WATCH_SECONDS)
        if not console.is_terminal:
            _print_changes(states, console)
            return
        with Live(console=console, auto_refresh=False) as live:
            for jobs in states:
                live.update(_table(jobs), refresh=True)
                time.sleep(WATCH_SECONDS)


class _ChangesAsJson:
    """Prints jobs that have changed, a line each."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[object, ...]] = {}  # the latest state of each job

    def tell(self, *jobs: Job) -> None:
        """Print those of some jobs that are not as they were when this was last called. Forget all others."""
        told = {job.id: _state(job) for job in jobs}
        for job in jobs:
            if self._told.get(job.id) != told[job.id]:
                print(json.dumps(job.raw), flush=True)
        self._told = told


def _state(job: Job) -> tuple[object, ...]:
    return job.id, job.status, job.scored_items


def _print_changes(states: Iterator[list[Job]], console: Console) -> None:
    """Print jobs whenever one of them has changed."""
    shown: list[tuple[object, ...]] | None = None
    for jobs in states:
        state = list(map(_state, jobs))
        if state != shown:
            console.print(_table(jobs))
            shown = state
        time.sleep(WATCH_SECONDS)


@jobs_app.command("cancel")
def cancel_command(
    job: Annotated[list[str] | None, typer.Argument(metavar="JOB...", help="The ids of jobs.")] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="NAME", help="Those of a `scoreline run`.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that your key may cancel, except for batches.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Cancel jobs: some by their ids, those of a run, or all. Those that have ended are not changed."""
    if bool(job) + (run is not None) + everything != 1:
        raise CommandError("give either ids of jobs, or --run NAME, or --all", ExitCode.USAGE)
    with Client(url) as client:
        if job:
            jobs = [client.cancel(one) for one in job]
        else:
            jobs = client.cancel_all(metadata=None if run is None else {RUN: run})
    if as_json:
        print(json.dumps([one.raw for one in jobs]))
        return
    for one in jobs:
        print(f"{one.id} {one.status}")


def _table(jobs: Sequence[Job]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("job", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("scored", justify="right", no_wrap=True)
    table.add_column("priority")
    table.add_column("created", overflow="fold")
    styles = {"succeeded": "green", "failed": "red", "expired": "red", "running": "bold"}
    for job in jobs:
        status = Text(job.status, style=styles.get(job.status, ""))
        scored = f"{job.scored_items:,} of {job.total_items:,}"
        table.add_row(job.id, status, scored, job.priority, _time(job.created_at))
    return table


def _console() -> Console:
    """Return standard output. Where it is no terminal, its lines are long enough for every table."""
    return Console() if sys.stdout.isatty() else Console(width=200)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
