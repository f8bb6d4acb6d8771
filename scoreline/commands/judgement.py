"""The commands that say what scores of a labelled file are worth, and that make calibrations and thresholds of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Unpack

import typer
from rich.console import Console

from scoreline.client import DEFAULT_URL, Evaluation
from scoreline.commands.labelled import LabelledOptions, LabelledWork, warn
from scoreline.commands.options import USING, JsonOption, UrlOption, with_scoring_options
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.terminal.judgement import interval_text, report_tables

app = typer.Typer()

SourceArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="CSV, TSV, JSON lines or Parquet, with the true label of each row.")
]
TruthOption = Annotated[str, typer.Option("--truth", metavar="COLUMN", help="The column of the true labels.")]
OutputOption = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="The artefact, as JSON. The name of the file is its own.")
]


@app.command("evaluate", rich_help_panel=USING)
@with_scoring_options(before="url", options=LabelledOptions)
def evaluate_command(
    source: SourceArgument,
    truth: TruthOption,
    systems: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Compare several prompts: TOML with a table for each, and options as its entries."
        ),
    ] = None,
    ranking: Annotated[
        bool, typer.Option("--ranking", help="Items are ranked for queries; true labels say how relevant each is.")
    ] = False,
    cutoff: Annotated[int, typer.Option("--cutoff", min=1, help="With --ranking: the k of NDCG@k and recall@k.")] = 10,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a page, which loads nothing.")
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON.")] = None,
    url: UrlOption = DEFAULT_URL,
    **given: Unpack[LabelledOptions],
) -> None:
    """Say how good the scores of a labelled file are, with intervals: of one prompt, or of several compared.

    The file is scored by the service, unless --scores names columns that it has. After an interruption, the same
    command goes on where it was.
    """
    work = LabelledWork(source, truth, given, ["numpy"], systems)
    from scoreline.judging import evaluation

    with _as_command_errors(source):
        found = work.scored(url, ranking=ranking)
        if ranking:
            report = evaluation.evaluate_rankings(work.labelled, found, work.groups, cutoff)
        else:
            report = evaluation.evaluate(work.labelled, found, work.groups, work.texts())
    if json_file is not None:
        _write(json_file, lambda path: path.write_text(Evaluation(report).json(), encoding="utf-8"))
    if html is not None:
        _write(html, lambda path: path.write_text(Evaluation(report).html(), encoding="utf-8"))
    console = Console()
    console.print(f"{report['rows']:,} rows in {report['clusters']:,} independent groups.", highlight=False)
    for table in report_tables(report):
        console.print()
        console.print(table)
    for warning in report["warnings"]:
        warn(warning)


@app.command("calibrate", rich_help_panel=USING)
@with_scoring_options(before="url", options=LabelledOptions)
def calibrate_command(
    source: SourceArgument,
    truth: TruthOption,
    output: OutputOption,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
    **given: Unpack[LabelledOptions],
) -> None:
    """Fit what makes probabilities say how often they are right, from a labelled file.

    Temperature, Platt scaling and isotonic regression are tried for two labels; temperature and vector scaling for
    more. The one with the lowest log loss on rows that it was not fitted on is kept.
    """
    work = LabelledWork(source, truth, given, ["numpy", "scipy", "sklearn"])
    from judgement.artefacts import write
    from judgement.calibration import check_enough
    from scoreline.judging.fitting import fit_calibration

    with _as_command_errors(source):
        (system,) = work.scored(url, check_enough)
        sample = work.sample(system)
        artefact = fit_calibration(Path(output).stem, work.labelled, system, sample)
    _write(output, lambda path: write(artefact, path))
    if as_json:
        print(json.dumps({"id": artefact.id, "method": artefact.method, **artefact.figures}))
        return
    figures, gain = artefact.figures, artefact.figures["gain_in_log_loss"]
    console = Console()
    for name, loss in sorted(figures["held_out_log_loss"].items(), key=lambda one: one[1]):
        console.print(f"{name:12} {loss:.4f}", highlight=False)
    console.print(
        f"{artefact.method} lowers the held-out log loss by {interval_text(gain)}, and the calibration error from "
        f"{figures['before']['ece']:.4f} to {figures['after']['ece']:.4f}.",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    if artefact.method == "identity":
        warn("no method is better than the probabilities as they are, so the artefact changes nothing")
    elif gain["low"] <= 0:
        warn("the gain may be chance: its interval has 0 in it")
    _say_how_it_is_named(console, output)


@app.command("threshold", rich_help_panel=USING)
@with_scoring_options(before="url", options=LabelledOptions)
def threshold_command(
    source: SourceArgument,
    truth: TruthOption,
    output: OutputOption,
    max_error: Annotated[
        float, typer.Option("--max-error", min=0.001, max=0.5, help="How many of the answers may be wrong, as a share.")
    ],
    calibration: Annotated[
        str | None, typer.Option(metavar="FILE", help="Calibrate first, by what `calibrate` made of other rows.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
    **given: Unpack[LabelledOptions],
) -> None:
    """Find the lowest probability from which on answers can be acted on, so that few of them are wrong.

    With a probability of 95 %, at most --max-error of the answers from this threshold on are wrong, for rows drawn as
    those of the file were. For more than two labels the artefact also has what makes sets, of which at most --max-error
    miss the true label.
    """
    work = LabelledWork(source, truth, given, ["numpy", "scipy"])
    from judgement.artefacts import read, write
    from judgement.thresholds import check_enough
    from scoreline.judging.fitting import check_calibration, fit_threshold

    with _as_command_errors(calibration or source):
        by = None if calibration is None else read(Path(calibration))
    with _as_command_errors(source):
        (system,) = work.scored(url, lambda sample, _: check_enough(sample, max_error))
        if by is not None and calibration is not None:
            check_calibration(by, calibration, work.labelled, system)
        artefact = fit_threshold(Path(output).stem, work.labelled, system, work.sample(system), max_error, by)
    _write(output, lambda path: write(artefact, path))
    if as_json:
        print(json.dumps({"id": artefact.id, **artefact.parameters, **artefact.figures}))
        return
    figures = artefact.figures
    console = Console()
    console.print(
        f"Act on answers with a probability, as a share of those of all labels, of "
        f"{artefact.parameters['threshold']:.6g} or more. In this file, these are {figures['acted']:,} of "
        f"{figures['independent_rows']:,} independent rows, of which {figures['errors']:,} are wrong; "
        f"{figures['abstained']:.1%} are left to a person.",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    console.print(
        f"At most {100 * max_error:.3g}% of such answers are wrong, with a probability of 95%, for rows drawn as these "
        "were.",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    if "mean_set_size" in figures:
        console.print(f"Sets have {figures['mean_set_size']:.2f} labels on average.", highlight=False)
    _say_how_it_is_named(console, output)


def _say_how_it_is_named(console: Console, output: str) -> None:
    console.print(
        f"Requests name it {Path(output).stem}, if {output} is in the folder of the service's SCORELINE_CALIBRATIONS: "
        ".scoreline/calibrations for `scoreline up`.",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


@contextmanager
def _as_command_errors(file: str) -> Iterator[None]:
    """Have what can't be judged end the command, in a line that names the file."""
    from judgement.sample import JudgementError

    try:
        yield
    except JudgementError as error:
        message = str(error)
        raise CommandError(message if file in message else f"{file}: {message}", ExitCode.REFUSED) from None
    except OSError as error:
        raise CommandError(f"{error.filename or file} can't be read: {error.strerror}", ExitCode.USAGE) from None


def _write(name: str, write: Callable[[Path], object]) -> None:
    try:
        write(Path(name))
    except OSError as error:
        raise CommandError(f"{name} can't be written: {error.strerror}", ExitCode.USAGE) from None
