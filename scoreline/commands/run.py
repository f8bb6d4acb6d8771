"""``scoreline run``: score all rows of a file."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar, Unpack

import typer
from rich.console import Console

from scoreline.client import DEFAULT_URL, AsyncClient, ScorelineError
from scoreline.commands.options import (
    USING,
    ArtefactOptions,
    JsonOption,
    LabelsOption,
    PermuteOption,
    UrlOption,
    with_scoring_options,
)
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.failures import failure_of
from scoreline.runs.beginning import Finished, run
from scoreline.runs.decisions import StateColumns, permute_of, read_questions, read_state_columns
from scoreline.runs.display import duration, share, speed
from scoreline.runs.formats import STANDARD, Format, format_of
from scoreline.runs.journal import JournalError
from scoreline.runs.plan import Empty, Plan, Remedy, given_options
from scoreline.runs.prompts import Columns, read_columns
from scoreline.runs.trial import Trial, try_out
from scoreline.runs.windows import WINDOW, WindowSize
from scoreline.runs.writing import discard_output
from scoreline.terminal.printable import printable

app = typer.Typer()
T = TypeVar("T")

SHOWN_ERRORS = 20  # of a run that writes to standard output, and so has no file that names all


@app.command("run", rich_help_panel=USING)
@with_scoring_options(before="on_too_long", options=ArtefactOptions)
def run_command(
    source: Annotated[str, typer.Argument(metavar="FILE", help="CSV, TSV, JSON lines or Parquet; -: standard input.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The same formats; -: standard output.")
    ],
    item_column: Annotated[str | None, typer.Option(help="The column of the items.")] = None,
    query_column: Annotated[str | None, typer.Option(help="The column of the queries.")] = None,
    query: Annotated[
        str | None, typer.Option(help="The query of all rows, where the file has no column of queries.")
    ] = None,
    label: LabelsOption = None,
    label_column: Annotated[
        list[str] | None,
        typer.Option(help="A column of labels, where rows have their own: a label or a list. It may be given again."),
    ] = None,
    questions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Ask these questions about each row instead: a JSON object of questions by their names.",
        ),
    ] = None,
    state_column: Annotated[str | None, typer.Option(help="With --questions: the column that they are about.")] = None,
    state_columns: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="The same for several columns, which become a JSON object.")
    ] = None,
    permute: PermuteOption = None,
    on_too_long: Annotated[
        Remedy, typer.Option(help="Rows with more tokens than the model takes: skip leaves their cells empty.")
    ] = Remedy.FAIL,
    on_error: Annotated[Remedy, typer.Option(help="The same for rows with another error.")] = Remedy.FAIL,
    empty: Annotated[
        Empty, typer.Option(help="Rows with nothing but blanks in a text: skip leaves their cells empty.")
    ] = Empty.FAIL,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many rows, from the beginning of the file.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done: read the file, and score and write nothing.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what an earlier run has written, and begin again.")
    ] = False,
    input_format: Annotated[Format | None, typer.Option(help="If the name of the file does not tell.")] = None,
    output_format: Annotated[Format | None, typer.Option(help="The same of the output.")] = None,
    escape_formulas: Annotated[
        bool,
        typer.Option("--escape-formulas", help="Put ' before texts that spreadsheets would compute (CSV and TSV)."),
    ] = False,
    column_prefix: Annotated[str, typer.Option(help="What the names of the new columns begin with.")] = "",
    window_rows: Annotated[
        int, typer.Option(min=1, help="Rows in memory at a time; rows of a query within them are scored together.")
    ] = WINDOW.rows,
    concurrency: Annotated[int, typer.Option(min=1, max=500, help="Jobs at a time.")] = 256,
    patience: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds for which a service that is away is waited for, once it has answered this run."
        ),
    ] = 3600.0,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
    **scoring: Unpack[ArtefactOptions],
) -> None:
    """Score all rows of a file, and write them with their scores; or ask questions about each, and write the answers.

    Every row has an item, and a query of its own or the same as all others. The output has the rows in the same order,
    with a column more for each label. With --questions, a row has a state, and the output a column more for each
    question, NAME, and one for how sure the answer is, NAME_confidence; of yes or no, NAME is the probability of yes.
    A run that was interrupted, or killed, goes on where it was if the same command is given again.
    """
    asked = read_questions(questions) if questions is not None else {}
    columns: Columns | StateColumns
    asked_options: dict[str, Any] = {}
    if asked:
        others = {"item_column": item_column, "query_column": query_column, "query": query, "label": label}
        refuse_beside_questions({**others, "label_column": label_column, **scoring})
        asked_options = {} if permute is None else {"permute": permute_of(permute)}
        columns = read_state_columns(state_column, state_columns, scores_empty=empty is Empty.SCORE)
    else:
        if state_column is not None or state_columns is not None or permute is not None:
            message = "--state-column, --state-columns and --permute belong to --questions, which is missing"
            raise CommandError(message, ExitCode.USAGE)
        if label_column and (label or scoring["template"] is not None):
            raise CommandError(
                "rows of --label-column have no other labels: leave out --label and --template", ExitCode.USAGE
            )
        columns = read_columns(
            item_column, query_column, query, scoring, label_column or (), scores_empty=empty is Empty.SCORE
        )
    sent = {f"{one.place}_template": one.sent for one in columns.fillings}
    source_format = format_of(source, input_format, "--input-format")
    plan = Plan(
        source=source,
        source_format=source_format,
        target=output,
        target_format=format_of(output, output_format or _like_the_input(output, source_format), "--output-format"),
        columns=columns,
        labels=tuple(label or ()),
        options=given_options({**scoring, **sent, **asked_options}),
        window=WindowSize(window_rows, WINDOW.characters),
        questions=asked,
        prefix=column_prefix,
        on_too_long=on_too_long,
        on_error=on_error,
        empty=empty,
        limit=limit,
        escape_formulas=escape_formulas,
        concurrency=concurrency,
        restart=restart,
    )
    if dry_run:
        _report_trial(
            plan, carry_out(plan.journal, url, patience, lambda client: try_out(plan, client)), as_json=as_json
        )
        return
    finished = carry_out(plan.journal, url, patience, lambda client: run(plan, client, Console(stderr=True)))
    _report(plan, finished, as_json=as_json)


def refuse_beside_questions(options: Mapping[str, object]) -> None:
    """Raise CommandError if an option is given that does not go with questions."""
    given = ["--softmax" if name == "apply_softmax" else f"--{name}" for name in given_options(options)]
    if given:
        words = ", ".join(given).replace("_", "-")
        raise CommandError(f"--questions asks about a state, and does not go with {words}", ExitCode.USAGE)


def _like_the_input(output: str, source_format: Format) -> Format | None:
    """Return the format of standard output if it is not named."""
    if output != STANDARD:
        return None
    return Format.JSON_LINES if source_format is Format.PARQUET else source_format


def carry_out(journal: Path | None, url: str, patience: float, what: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Do something with a client, and return what comes of it. Raises CommandError for all that can go wrong.

    journal: where the journals of its runs are; None: it can't be resumed. patience: in seconds.
    """

    async def go() -> T:
        async with AsyncClient(url, retry_seconds=patience, outage_seconds=patience) as client:
            return await what(client)

    hint = "" if journal is None else "the same command goes on where this one has stopped"
    goes_on = f"; {hint}" if hint else ""
    try:
        return asyncio.run(go())
    except KeyboardInterrupt:
        raise CommandError(f"interrupted{goes_on}", ExitCode.INTERRUPTED) from None
    except ScorelineError as error:
        raise failure_of(error, hint=hint) from None
    except BrokenPipeError:
        discard_output()
        raise CommandError("nobody reads the output any more") from None
    except OSError as error:
        raise CommandError(f"the output can't be written: {error.strerror or error}{goes_on}") from None
    except JournalError as error:
        raise CommandError(f"the journal {journal} can't be written: {error}{goes_on}") from None


def _report_trial(plan: Plan, trial: Trial, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(trial)))
        return
    print(f"{trial.rows:,} rows in {trial.jobs:,} jobs. Nothing is scored or written.")
    print(f"New columns: {', '.join(trial.new_columns)}")
    if trial.first is not None:
        print(("First row: state {!r}" if plan.questions else "First row: query {!r}, item {!r}").format(*trial.first))
    time = "" if trial.seconds is None else f", about {duration(trial.seconds)} of scoring"
    print(f"About {trial.prompt_tokens:,.0f} tokens{time}.")
    for count, why in ((trial.empty, "have no text"), (trial.failed, "can't be scored")):
        if count:
            print(f"{count:,} rows {why}.")
    for line in (*trial.problems, *(f"warning: {warning}" for warning in trial.warnings)):
        print(printable(line))


def _report(plan: Plan, finished: Finished, *, as_json: bool) -> None:
    written = finished.written
    if as_json:
        figures = {
            "run": finished.run,
            "output": plan.target,
            "rows": written.rows,
            "too_long": written.too_long,
            "empty": written.empty,
            "failed": written.failed,
            "errors": finished.errors,
            "errors_file": str(plan.errors) if finished.errors and plan.errors is not None else None,
            "prompt_tokens": written.prompt_tokens,
            "shared_tokens": written.shared_tokens,
            "seconds": round(written.seconds, 3),
            "warnings": finished.warnings,
        }
        print(json.dumps(figures), file=sys.stderr if plan.target == STANDARD else sys.stdout)
        return
    console = Console(stderr=True)
    rate = written.rows / written.seconds if written.seconds else 0.0
    target = "standard output" if plan.target == STANDARD else plan.target
    console.print(
        f"Wrote {written.rows:,} rows to {target} in {duration(written.seconds)}: {speed(rate)}, "
        f"{share(written.shared_tokens, written.prompt_tokens)} of {written.prompt_tokens:,} tokens shared.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    named = "" if plan.errors is None else f" {plan.errors} names them."
    for count, why in (
        (written.too_long, "are longer than the model takes"),
        (written.empty, "have no text"),
        (written.failed, "could not be scored"),
    ):
        if count:
            line = f"{count:,} rows {why}: their cells are empty.{named}"
            console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for error in finished.errors[:SHOWN_ERRORS] if plan.errors is None else ():
        unit = "line" if "line" in error else "row"
        console.print(
            f"{unit} {error[unit]}: {printable(error['reason'])}", markup=False, highlight=False, soft_wrap=True
        )
    for warning in finished.warnings:
        console.print(f"warning: {printable(warning)}", style="yellow", markup=False, soft_wrap=True)
