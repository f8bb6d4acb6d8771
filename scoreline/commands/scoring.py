"""The commands that score or rank a few items now, or submit many as one job."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Unpack

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scoreline.client import DEFAULT_URL, Client, InvalidRequest, Priority
from scoreline.commands.options import (
    USING,
    BaselineOption,
    InstructionOption,
    JsonOption,
    LabelsOption,
    ScoringOptions,
    TemplateOption,
    UrlOption,
    with_scoring_options,
)
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.templates import labels_of, model_of
from scoreline.terminal.charts import likelihood_chart, score_chart
from scoreline.terminal.printable import printable
from scoreline.terminal.tables import in_one_line, likelihood_table, score_table

app = typer.Typer()

TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds to wait for the scores.")]
ItemsOption = Annotated[
    list[str] | None, typer.Option("--item", help="What follows the query; give it once for each item.")
]
FileOfItemsOption = Annotated[
    typer.FileBinaryRead | None,
    typer.Option("--items", help="A file of items: JSON lines, a text in quotes each. `-`: standard input."),
]


@app.command("score", rich_help_panel=USING)
@with_scoring_options(before="chart")
def score_command(
    query: Annotated[str, typer.Option(help="The text that all items follow.")],
    item: Annotated[list[str], typer.Option(help="What follows the query; give it once for each item.")],
    label: LabelsOption = None,
    baseline: BaselineOption = None,
    chart: Annotated[bool, typer.Option("--chart", help="Draw the scores as bars.")] = False,
    timeout: TimeoutOption = 60.0,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
    **options: Unpack[ScoringOptions],
) -> None:
    """Score items with a running service: how likely is each label after query + item?"""
    with Client(url) as client:
        labels = list(label or labels_of(model_of(client.models(), None), (), options["template"]))
        result = client.score(
            query,
            item,
            labels=label or None,
            baseline=baseline or None,
            timeout=timeout,
            **options,
        )
    if as_json:
        print(json.dumps(result.raw))
        return
    console, scores = Console(), result.adjusted or result.scores
    if chart:
        console.print(score_chart(item, labels, scores))
    else:
        console.print(score_table(item, labels, scores, label_mass=result.label_mass))
    _print_warnings(console, result.warnings)


@app.command("likelihood", rich_help_panel=USING)
def likelihood_command(
    query: Annotated[str, typer.Option(help="The text that all items follow.")],
    item: ItemsOption = None,
    items: FileOfItemsOption = None,
    token_logprobs: Annotated[
        bool, typer.Option("--token-logprobs", help="Also show the log-probability of each token.")
    ] = False,
    chart: Annotated[
        bool, typer.Option("--chart", help="Draw how probable each item is beside the most probable one.")
    ] = False,
    timeout: TimeoutOption = 60.0,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show how probable each item itself is after the query: the sum of the log-probabilities of its tokens."""
    texts = _given_texts(item, items, "--item", "--items")
    with Client(url) as client:
        result = client.likelihood(query, texts, return_token_logprobs=token_logprobs, timeout=timeout)
    if as_json:
        print(json.dumps(result.raw))
        return
    console = Console()
    if chart:
        console.print(likelihood_chart(texts, result.logprob))
    else:
        console.print(
            likelihood_table(texts, result.logprob, result.num_tokens, result.is_greedy, result.token_logprobs)
        )
    _print_warnings(console, result.warnings)


@app.command("rerank", rich_help_panel=USING)
def rerank_command(
    query: Annotated[str, typer.Option(help="What the documents are to be relevant to.")],
    document: Annotated[list[str] | None, typer.Option(help="A text; give it once for each document.")] = None,
    documents: Annotated[
        typer.FileBinaryRead | None,
        typer.Option(help="A file of documents: JSON lines, a text in quotes each. `-`: standard input."),
    ] = None,
    top_n: Annotated[int | None, typer.Option(min=1, help="How many to show, the most relevant first.")] = None,
    template: TemplateOption = None,
    instruction: InstructionOption = None,
    timeout: TimeoutOption = 60.0,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Rank documents by their relevance to a query."""
    texts = _given_texts(document, documents, "--document", "--documents")
    with Client(url) as client:
        ranking = client.rerank(query, texts, top_n=top_n, template=template, instruction=instruction, timeout=timeout)
    if as_json:
        print(json.dumps(ranking.raw))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("relevance", justify="right", no_wrap=True)
    table.add_column("#", justify="right", style="dim")
    table.add_column("document", overflow="fold")
    for result in ranking.results:
        table.add_row(f"{result.relevance_score:.4f}", str(result.index), Text(in_one_line(texts[result.index])))
    console = Console()
    console.print(table)
    _print_warnings(console, ranking.warnings)


def _print_warnings(console: Console, warnings: Sequence[str]) -> None:
    for warning in warnings:
        console.print(f"warning: {printable(warning)}", style="yellow", markup=False)


@app.command("submit", rich_help_panel=USING)
@with_scoring_options(before="priority")
def submit_command(
    query: Annotated[str, typer.Option(help="The text that all items follow.")],
    items: Annotated[
        typer.FileBinaryRead,
        typer.Option(help="JSON lines, an item each: a text in quotes. `-`: read them from standard input."),
    ],
    label: LabelsOption = None,
    priority: Annotated[Priority | None, typer.Option(help="interactive, normal or bulk.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Makes it safe to submit again.")] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
    **options: Unpack[ScoringOptions],
) -> None:
    """Submit a job of any size to a running service and print its id."""
    lines: array[int] = array("q")
    with Client(url) as client:
        try:
            job = client.upload(
                query,
                read_items(items, lines),
                labels=label or None,
                priority=priority,
                idempotency_key=idempotency_key,
                **options,
            )
        except InvalidRequest as error:
            raise CommandError(_of_the_file(error, lines), ExitCode.REFUSED) from None
    print(json.dumps(job.raw) if as_json else job.id)


def _given_texts(given: Sequence[str] | None, file: Iterable[bytes] | None, option: str, file_option: str) -> list[str]:
    """Return the texts that were given one by one, and then those of a file of JSON lines. Raises CommandError."""
    texts, lines = list(given or ()), array("q")
    for text in () if file is None else read_items(file, lines):
        if not isinstance(text, str):
            raise CommandError(f"line {lines[-1]} of {file_option} is no text in quotes", ExitCode.REFUSED)
        texts.append(text)
    if not texts:
        raise CommandError(f"there is nothing to score: give {option} TEXT, or {file_option} FILE", ExitCode.USAGE)
    return texts


def read_items(file: Iterable[bytes], lines: array[int]) -> Iterator[str]:
    """Yield the items of a file of JSON lines, and add the number of each one's line to ``lines``."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise CommandError(f"line {number} of the items is not JSON: {error}", ExitCode.REFUSED) from None
        lines.append(number)
        yield item


def _of_the_file(error: InvalidRequest, lines: Sequence[int]) -> str:
    """Return the message of an error, with the number of the line of the file if it is about an item."""
    named = re.match(r"items\[(\d+)\]", error.param or "")
    place = int(named[1]) if named else len(lines)
    return f"line {lines[place]} of the items: {error.message}" if place < len(lines) else error.message
