"""The commands that run a service, or work on its database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from scoreline.commands.administration import DataOption, run_on_database
from scoreline.commands.options import JsonOption
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.server_process import DEMONSTRATION_MODEL, ROOT, exec_on_database, exec_server_module

# The modules that run a service are imported only by the commands that need them, because they work only on Unix.

RUNNING = "Run a service"
DATABASE = "Work on the database of a service"

app = typer.Typer()

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


@app.command("up", rich_help_panel=RUNNING)
def up_command(
    model: ModelOption = None,
    models: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve the models of a TOML file, as `scoreline models apply` reads it."),
    ] = None,
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

    if models is not None and model is not None:
        message = "--models and --model (or SCORELINE_MODEL) are both given: the file has all models that are served"
        raise CommandError(message, ExitCode.USAGE)
    if models is not None:
        up(EmbeddedSettings(None, data, host, port, None, processes, models), Console())
        return
    name = os.environ.get("SCORELINE_MODEL_NAME") or (None if model else "demonstration")
    up(EmbeddedSettings(model or str(DEMONSTRATION_MODEL), data, host, port, name, processes), Console())


@app.command("demo", rich_help_panel=RUNNING)
def demo_command() -> None:
    """Start the service, score real sentences for several tasks, print the scores, stop."""
    from scoreline.commands.demo import demo

    raise typer.Exit(demo(Console()))


@app.command("api", rich_help_panel=RUNNING)
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


@app.command("worker", rich_help_panel=RUNNING)
def worker_command() -> None:
    """Run one scoring worker (production). It is configured by SCORELINE_* variables."""
    exec_server_module("workers.engine_loop", {})


@app.command("deliver", rich_help_panel=RUNNING)
def deliver_command() -> None:
    """Run a process that delivers webhooks (production). It is configured by SCORELINE_* variables."""
    exec_server_module("workers.delivery", {})


@app.command("compile", rich_help_panel=RUNNING)
def compile_command(
    target: Annotated[str, typer.Option(help="v5e, v6e, v6e:1x1, v6e:2x2 or v6e:2x4; one chip of it is compiled for.")],
    model: Annotated[
        str, typer.Option(help="Folder of a HuggingFace checkpoint, or a shape: qwen3-0.6b, qwen3-8b, qwen3.5-4b.")
    ] = str(DEMONSTRATION_MODEL),
    context: Annotated[
        int | None, typer.Option(help="Tokens of the longest sequence; the model's own if absent.")
    ] = None,
) -> None:
    """Compile all programs of a worker for a TPU, on a machine without one, and estimate how long they take.

    Needs libtpu; only the configuration of the model is read. Exit status: 0 where all programs compile and fit into
    the memory, 1 where they do not, 2 where nothing can be compiled.
    """
    if not (ROOT / "tools" / "tpu").is_dir():
        raise CommandError("only a checkout of Scoreline can compile for TPUs: the package and the image can not")
    longest = [] if context is None else ["--context", str(context)]
    exec_server_module("tools.tpu", {}, ["--target", target, "--model", model, *longest])


webhooks_app = typer.Typer(help="Webhooks of the database of SCORELINE_DATABASE_URL.", no_args_is_help=True)
secret_app = typer.Typer(help="The secrets that webhooks are signed with.", no_args_is_help=True)
webhooks_app.add_typer(secret_app, name="secret")
app.add_typer(webhooks_app, name="webhooks", rich_help_panel=DATABASE)

TENANT_OPTION = typer.Option(help="Whose webhooks.")


@secret_app.command("show")
def show_secret_command(
    tenant: Annotated[str, TENANT_OPTION] = "default", data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Print the secrets that webhooks are signed with at present, the newest first."""
    run_on_database("operations.webhook_secret", data, "show", tenant, as_json=as_json)


@secret_app.command("rotate")
def rotate_secret_command(
    tenant: Annotated[str, TENANT_OPTION] = "default", data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Make a new secret. The one before signs too, for as long as SCORELINE_WEBHOOK_SECRET_OVERLAP_SECONDS says."""
    run_on_database("operations.webhook_secret", data, "rotate", tenant, as_json=as_json)


@app.command("migrate", rich_help_panel=DATABASE)
def migrate_command() -> None:
    """Bring the database of SCORELINE_DATABASE_URL to this version's schema."""
    exec_server_module("operations.migrate", {})


@app.command("check", rich_help_panel=DATABASE)
def check_command(
    data: DataOption = None,
    model: Annotated[
        str | None, typer.Option(help="Look at this checkpoint instead: a folder, or an id on the hub.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the hub.")] = None,
    adapters: Annotated[str | None, typer.Option(help="LoRA adapter that is merged into the model.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Look in a database for what must never be there. Reads all of it.

    With --model: say whether and how a checkpoint is served, without reading its weights.

    Exit code: 0 where all is well, 1 where it is not, 2 or 3 where it can't be told.
    """
    options = ["--json"] if as_json else []
    if model is None:
        if revision is not None or adapters is not None:
            raise CommandError("--revision and --adapters go with --model", ExitCode.USAGE)
        exec_on_database("operations.check", data, options)
        return
    if data is not None:
        raise CommandError("give either --data or --model", ExitCode.USAGE)
    named = {"--model": model, "--revision": revision, "--adapters": adapters}
    options += [part for name, value in named.items() if value is not None for part in (name, value)]
    exec_server_module("model.inspection", {}, options)
