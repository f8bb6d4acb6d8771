"""The page of the command: the help of every command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from docs.site.reference.tables import code, table
from scoreline.command import app

ROOT = Path(__file__).parents[3]
NAME = "scoreline"
INTRODUCTION = """\
# All commands

This is what `scoreline --help` and `scoreline COMMAND --help` say. [The command](../command.md) shows how the commands
that use a service work together, and has their [exit codes](../command.md#exit-codes)."""

_REMARKS = re.compile(r"^(?P<help>.*?)(?:^|  )\[(?P<remarks>[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]$", re.DOTALL)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command and each group of commands with its name, as one types it."""
    yield from _below(NAME, typer.main.get_command(app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            yield from _below(f"{name} {word}", one)


def page() -> str:
    """Return the page: a section for each command."""
    return "\n\n".join([INTRODUCTION, *(_section(name, command) for name, command in commands())]) + "\n"


def _section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    below = [
        (f"[`{name} {word}`](#{name.replace(' ', '-')}-{word})", _first_sentence(one.help))
        for word, one in getattr(command, "commands", {}).items()
        if not one.hidden
    ]
    options = [row for parameter in command.params if (row := _row(parameter, context))]
    parts = [f"## {name}", f"```\n{usage}\n```", inspect.cleandoc(command.help or "")]
    parts += [table(("command", "what it does"), below)] if below else []
    parts += [table(("option", "what it is", "default and limits"), options)] if options else []
    return "\n\n".join(part for part in parts if part)


def _row(parameter: Any, context: typer.Context) -> tuple[str, str, str] | None:
    """Return what the help says of an option or an argument: its names, its meaning, and its default and limits."""
    record = parameter.get_help_record(context)
    if record is None:
        return None
    names, said = record
    found = _REMARKS.match(said)
    remarks = found["remarks"].replace(f"{ROOT}/", "") if found else ""
    return code(names), found["help"] if found else said, remarks


def _first_sentence(text: str | None) -> str:
    return re.split(r"(?<=[.?]) |\n\n", inspect.cleandoc(text or ""))[0]
