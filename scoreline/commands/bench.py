"""``scoreline bench``: put a load on a running service, and show how fast it answers."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from scoreline.client import DEFAULT_URL, AsyncClient, Model, ScorelineError
from scoreline.commands.options import USING, JsonOption, UrlOption
from scoreline.exit_codes import CommandError, ExitCode, exit_code_of
from scoreline.runs.display import share

app = typer.Typer()

PERCENTILES = (50, 90, 99)
REFUSED_PAUSE_SECONDS = 0.1
"""How long a client waits after a refused call. The service would otherwise be busy with refusals alone."""


@dataclass(frozen=True, slots=True)
class Load:
    """What each call asks for, and how many calls there are at the same time."""

    query_tokens: int
    items: int
    item_tokens: int
    labels: int
    queries: int  # different ones; 0: each call has a query of its own
    clients: int
    seconds: float


@dataclass(slots=True)
class Measured:
    """What came of the calls."""

    seconds: list[float] = field(default_factory=list)  # that each call took which was answered with scores
    errors: Counter[str] = field(default_factory=Counter)  # the others, by their code
    tokens: int = 0
    shared_tokens: int = 0
    first_error: ScorelineError | None = None


@app.command("bench", rich_help_panel=USING)
def bench_command(
    query_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a query.")] = 300,
    items: Annotated[int, typer.Option(min=1, help="Items of a call.")] = 100,
    item_tokens: Annotated[int, typer.Option(min=0, help="Tokens of an item.")] = 20,
    labels: Annotated[int, typer.Option(min=1, help="Labels of a call.")] = 2,
    queries: Annotated[int, typer.Option(min=0, help="Different queries; 0: each call has its own.")] = 0,
    clients: Annotated[int, typer.Option(min=1, max=1_000, help="Calls at the same time.")] = 4,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to go on.")] = 10.0,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Put a load on a running service: calls with made-up tokens, one after another by each client.

    Each client waits for an answer before it sends the next call. The load is real: others share the service with it.
    """
    load = Load(query_tokens, items, item_tokens, labels, queries, clients, seconds)
    measured = asyncio.run(_measure(load, url))
    if not measured.seconds:
        error = measured.first_error
        code = ExitCode.FAILED if error is None else exit_code_of(error.code, error.status)
        raise CommandError(f"no call was answered with scores: {error or 'there was too little time'}", code)
    figures = _figures(load, measured)
    if as_json:
        print(json.dumps(figures))
        return
    _print(figures)


async def _measure(load: Load, url: str) -> Measured:
    measured = Measured()
    async with AsyncClient(url, retry_seconds=0) as client:
        (model, *_) = await client.models()
        _check(load, model)
        calls = _calls(load, model)
        end = time.monotonic() + load.seconds
        await asyncio.gather(*(_call(client, calls, end, measured) for _ in range(load.clients)))
    return measured


def _check(load: Load, model: Model) -> None:
    length = load.query_tokens + load.item_tokens
    if length > model.max_model_len:
        message = (
            f"{load.query_tokens} + {load.item_tokens} tokens are more than the {model.max_model_len} of {model.id}"
        )
        raise CommandError(message, ExitCode.USAGE)


def _calls(load: Load, model: Model) -> Iterator[dict[str, Any]]:
    """Yield the arguments of calls with made-up token ids. None of them is special to the model."""
    # Special tokens are at the ends of most vocabularies.
    tokens = [id_ for id_ in range(model.vocabulary // 10, model.vocabulary * 9 // 10) if id_ != model.delimiter]
    chance = random.Random()
    known = [chance.choices(tokens, k=load.query_tokens) for _ in range(load.queries)]
    while True:
        query = chance.choice(known) if known else chance.choices(tokens, k=load.query_tokens)
        items = [chance.choices(tokens, k=load.item_tokens) for _ in range(load.items)]
        yield {"query": query, "items": items, "label_token_ids": tokens[: load.labels], "apply_softmax": True}


async def _call(client: AsyncClient, calls: Iterator[dict[str, Any]], end: float, measured: Measured) -> None:
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            result = await client.score(**next(calls))
        except ScorelineError as error:
            measured.errors[error.code] += 1
            measured.first_error = measured.first_error or error
            await asyncio.sleep(REFUSED_PAUSE_SECONDS)
            continue
        measured.seconds.append(time.monotonic() - began)
        measured.tokens += result.prompt_tokens
        measured.shared_tokens += result.cached_tokens


def _figures(load: Load, measured: Measured) -> dict[str, Any]:
    # What ended after the time is counted with the time that it took.
    seconds = max(load.seconds, sum(measured.seconds) / load.clients)
    calls = len(measured.seconds)
    ordered = sorted(measured.seconds)
    return {
        "calls": calls,
        "errors": dict(measured.errors),
        "calls_per_second": round(calls / seconds, 3),
        "items_per_second": round(calls * load.items / seconds, 3),
        "tokens_per_second": round(measured.tokens / seconds, 1),
        "shared_tokens": round(measured.shared_tokens / measured.tokens, 4) if measured.tokens else 0.0,
        "seconds": {f"p{percent}": round(percentile(ordered, percent), 4) for percent in PERCENTILES}
        | {"max": round(ordered[-1], 4)},
    }


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that so many per cent of the values do not exceed. ordered: at least one value."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _print(figures: dict[str, Any]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("calls answered", f"{figures['calls']:,}")
    for code, count in figures["errors"].items():
        table.add_row(f"calls refused: {code}", f"{count:,}")
    for name in ("calls", "items", "tokens"):
        table.add_row(f"{name} per second", f"{figures[f'{name}_per_second']:,.1f}")
    table.add_row("tokens shared", share(round(figures["shared_tokens"] * 10_000), 10_000))
    for name, seconds in figures["seconds"].items():
        table.add_row(f"seconds of a call, {name}", f"{seconds:.3f}")
    Console().print(table)
