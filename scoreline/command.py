"""The ``scoreline`` command.

The modules that run a server are imported only by the commands that need them, because they work only on Unix.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from scoreline.administration import keys_app, tenants_app
from scoreline.client import DEFAULT_URL, Client, ScorelineError
from scoreline.printable import printable
from scoreline.server_process import DEMONSTRATION_MODEL, CommandError, exec_server_module
from scoreline.tables import score_table

app = typer.Typer(
    help="Score items against a query with a causal language model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        envvar="SCORELINE_MODEL",
        help="Folder of a HuggingFace checkpoint, or a model on the hub, such as Qwen/Qwen3-0.6B.  "
        "[default: the demonstration]",
    ),
]
HOST_OPTION = typer.Option("--host", envvar="SCORELINE_HOST", help="Address to bind.")
PORT_OPTION = typer.Option("--port", envvar="SCORELINE_PORT", min=0, max=65535, help="Port to bind; 0: any free one.")


def _number_or_auto(value: str) -> str:
    if value != "auto" and not (value.isascii() and value.isdigit() and int(value) > 0):
        raise typer.BadParameter(f"{value!r} is neither a number from 1 on nor `auto`")
    return value


PROCESSES_OPTION = typer.Option(
    "--processes",
    envvar="SCORELINE_API_PROCESSES",
    parser=_number_or_auto,
    metavar="N|auto",
    help="Processes that serve the port together; auto: one for each core.",
)


def main() -> None:
    """Run the command. An error is printed on one line, and the exit status is 1."""
    try:
        app()
    except (CommandError, ScorelineError, TimeoutError) as error:
        Console(stderr=True).print(
            f"scoreline: {printable(str(error))}", style="red", markup=False, highlight=False, soft_wrap=True
        )
        sys.exit(1)


@app.command("up")
def up_command(
    model: ModelOption = None,
    data: Annotated[Path, typer.Option(help="Where jobs and scores are kept.")] = Path(".scoreline"),
    host: Annotated[str, HOST_OPTION] = "127.0.0.1",
    port: Annotated[int, PORT_OPTION] = 8000,
    processes: Annotated[str, PROCESSES_OPTION] = "1",
) -> None:
    """Run everything in this terminal: the API, one worker, the delivery of webhooks, and a SQLite database. Needs
    nothing else.
    """
    from scoreline.embedded import EmbeddedSettings
    from scoreline.up import up

    name = os.environ.get("SCORELINE_MODEL_NAME") or (None if model else "demonstration")
    up(EmbeddedSettings(model or str(DEMONSTRATION_MODEL), data, host, port, name, processes), Console())


@app.command("demo")
def demo_command() -> None:
    """Start the service, score real sentences for several tasks, print the scores, stop."""
    from scoreline.demo import demo

    raise typer.Exit(demo(Console()))


@app.command("score")
def score_command(
    query: Annotated[str, typer.Option(help="The text that all items follow.")],
    item: Annotated[list[str], typer.Option(help="What follows the query; give it once for each item.")],
    label: Annotated[list[str], typer.Option(help="A next token to be scored, as text, such as ' yes'; repeatable.")],
    softmax: Annotated[bool, typer.Option("--softmax", help="Normalise each row over the labels.")] = False,
    item_template: Annotated[
        str | None, typer.Option(help="What each item becomes: `{item}` stands for it. Default: the item itself.")
    ] = None,
    url: Annotated[str, typer.Option(envvar="SCORELINE_URL", help="Where the service runs.")] = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the response as it came.")] = False,
) -> None:
    """Score items with a running service: how likely is each label after query + item?"""
    with Client(url) as client:
        result = client.score(query, item, labels=label, apply_softmax=softmax, item_template=item_template)
    if as_json:
        print(json.dumps(result.raw))
        return
    console = Console()
    console.print(score_table(item, label, result.scores))
    for warning in result.warnings:
        console.print(f"warning: {printable(warning)}", style="yellow", markup=False)


@app.command("submit")
def submit_command(
    query: Annotated[str, typer.Option(help="The text that all items follow.")],
    items: Annotated[
        typer.FileBinaryRead,
        typer.Option(help="JSON lines, an item each: a text in quotes. `-`: read them from standard input."),
    ],
    label: Annotated[list[str], typer.Option(help="A next token to be scored, as text, such as ' yes'; repeatable.")],
    softmax: Annotated[bool, typer.Option("--softmax", help="Normalise each row over the labels.")] = False,
    item_template: Annotated[
        str | None, typer.Option(help="What each item becomes: `{item}` stands for it. Default: the item itself.")
    ] = None,
    priority: Annotated[str | None, typer.Option(help="interactive, normal or bulk.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Makes it safe to submit again.")] = None,
    url: Annotated[str, typer.Option(envvar="SCORELINE_URL", help="Where the service runs.")] = DEFAULT_URL,
) -> None:
    """Submit a job of any size to a running service and print its id."""
    with Client(url) as client:
        job = client.upload(
            query,
            _read_items(items),
            labels=label,
            apply_softmax=softmax,
            item_template=item_template,
            priority=priority,
            idempotency_key=idempotency_key,
        )
    print(job.id)


def _read_items(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError as error:
            raise CommandError(f"line {number} of the items is not JSON: {error}") from None


@app.command("api")
def api_command(
    host: Annotated[str | None, HOST_OPTION] = None,
    port: Annotated[int | None, PORT_OPTION] = None,
    processes: Annotated[str | None, PROCESSES_OPTION] = None,
) -> None:
    """Run the API alone (production). It is configured by SCORELINE_* variables."""
    changes = {
        "SCORELINE_HOST": host,
        "SCORELINE_PORT": None if port is None else str(port),
        "SCORELINE_API_PROCESSES": processes,
    }
    exec_server_module("api", {name: value for name, value in changes.items() if value is not None})


@app.command("worker")
def worker_command() -> None:
    """Run one scoring worker (production). It is configured by SCORELINE_* variables."""
    exec_server_module("workers.engine_loop", {})


@app.command("deliver")
def deliver_command() -> None:
    """Run a process that delivers webhooks (production). It is configured by SCORELINE_* variables."""
    exec_server_module("workers.delivery", {})


@app.command("compile")
def compile_command(
    target: Annotated[str, typer.Option(help="v5e, v6e, v6e:1x1, v6e:2x2 or v6e:2x4; one chip of it is compiled for.")],
    model: Annotated[
        str, typer.Option(help="Folder of a HuggingFace checkpoint, or a shape: qwen3-0.6b, qwen3-8b or llama-3.2-1b.")
    ] = str(DEMONSTRATION_MODEL),
) -> None:
    """Compile all programs of a worker for a TPU, on a machine without one, and estimate how long they take.

    Needs libtpu; only the configuration of the model is read. Exit status: 0 where all programs compile and fit into
    the memory, 1 where they do not, 2 where nothing can be compiled.
    """
    exec_server_module("model.compiling", {}, ["--target", target, "--model", model])


webhooks_app = typer.Typer(help="Webhooks of the database of SCORELINE_DATABASE_URL.", no_args_is_help=True)
secret_app = typer.Typer(help="The secrets that webhooks are signed with.", no_args_is_help=True)
webhooks_app.add_typer(secret_app, name="secret")
app.add_typer(webhooks_app, name="webhooks")

TENANT_OPTION = typer.Option(help="Whose webhooks.")


@secret_app.command("show")
def show_secret_command(tenant: Annotated[str, TENANT_OPTION] = "default") -> None:
    """Print the secrets that webhooks are signed with at present, the newest first."""
    exec_server_module("operations.webhook_secret", {}, ["show", tenant])


@secret_app.command("rotate")
def rotate_secret_command(tenant: Annotated[str, TENANT_OPTION] = "default") -> None:
    """Make a new secret. The one before signs too, for as long as SCORELINE_WEBHOOK_SECRET_OVERLAP_SECONDS says."""
    exec_server_module("operations.webhook_secret", {}, ["rotate", tenant])


app.add_typer(keys_app, name="keys", no_args_is_help=True)
app.add_typer(tenants_app, name="tenants", no_args_is_help=True)


@app.command("migrate")
def migrate_command() -> None:
    """Bring the database of SCORELINE_DATABASE_URL to this version's schema."""
    exec_server_module("operations.migrate", {})


@app.command("check")
def check_command() -> None:
    """Look in the database of SCORELINE_DATABASE_URL for what must never be there. Reads all of it.

    Exit status: 0 where all is well, 1 where it is not, 2 where it can't be told.
    """
    exec_server_module("operations.check", {})
