"""The ``scoreline`` command: its groups of commands, and how it ends."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from typer.exceptions import TyperException

from scoreline import __version__
from scoreline.client import ScorelineError
from scoreline.commands import bench, jobs, judgement, models, receipts, run, scoring, server
from scoreline.commands.administration import keys_app, tenants_app
from scoreline.commands.options import USING
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.failures import failure_of
from scoreline.terminal.printable import printable

app = typer.Typer(
    help="Score items against a query with a causal language model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (run, judgement, receipts, scoring, jobs, bench, server):
    app.add_typer(group.app)
app.add_typer(models.app, name="models", rich_help_panel=USING)
app.add_typer(keys_app, name="keys", no_args_is_help=True, rich_help_panel=server.DATABASE)
app.add_typer(tenants_app, name="tenants", no_args_is_help=True, rich_help_panel=server.DATABASE)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"scoreline {__version__}")
        raise typer.Exit


@app.callback()
def callback(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and end.")
    ] = False,
) -> None:
    """Score items against a query with a causal language model."""


def main() -> None:
    """Run the command. An error is printed on one line, and the exit code says what kind of failure it was."""
    try:
        sys.exit(app(standalone_mode=False) or ExitCode.OK)
    except TyperException as error:
        _refuse(error)
    except CommandError as error:
        _fail(str(error), error.exit_code)
    except ScorelineError as error:
        failure = failure_of(error)
        _fail(str(failure), failure.exit_code)
    except TimeoutError as error:
        _fail(str(error), ExitCode.TIMED_OUT)


def _refuse(error: TyperException) -> NoReturn:
    """Say which option or argument is wrong, and where all of them are described."""
    message = error.format_message().strip()
    if not message:  # the help was printed, of a command that does nothing without arguments
        sys.exit(ExitCode.USAGE)
    context, value = getattr(error, "ctx", None), _given_value(getattr(error, "param", None))
    given = f" (given: {value!r})" if value is not None and repr(value) not in message else ""
    known = f"; `{context.command_path} --help` shows what can be given" if context else ""
    _fail(f"{message.removesuffix('.')}{given}{known}", ExitCode(error.exit_code))


def _given_value(parameter: typer.CallbackParam | None) -> str | None:
    """Return the text that was given for an option, on the command line or in its variable; None if it is not found."""
    for name in () if parameter is None else parameter.opts:
        for word, following in zip(sys.argv, [*sys.argv[1:], None], strict=True):
            if word == name or word.startswith(f"{name}="):
                return word.partition("=")[2] if "=" in word else following
    variable = None if parameter is None else parameter.envvar
    return os.environ.get(variable) if isinstance(variable, str) else None


def _fail(message: str, exit_code: ExitCode) -> NoReturn:
    Console(stderr=True).print(
        f"scoreline: {printable(message)}", style="red", markup=False, highlight=False, soft_wrap=True
    )
    sys.exit(exit_code)
