"""Every command that prints something for people prints it as JSON for programs, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from scoreline.command import app

PROCESSES = {"up", "demo", "api", "worker", "deliver", "compile", "migrate"}
"""The commands that have nothing to print but what they log, or show a person that the service works."""


def commands(group: Any, *names: str) -> Iterator[tuple[str, set[str]]]:
    """Yield all commands, with their options."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *names, name)
        else:
            yield " ".join((*names, name)), {option for parameter in command.params for option in parameter.opts}


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - PROCESSES))
def test_a_command_has_the_option(name: str) -> None:
    assert "--json" in COMMANDS[name]


def test_the_others_are_processes() -> None:
    assert COMMANDS.keys() > PROCESSES
    assert not any("--json" in COMMANDS[name] for name in PROCESSES)


@pytest.mark.parametrize(
    "command",
    [
        "keys create --name x",
        "keys list",
        "keys revoke x",
        "tenants list",
        "tenants set x",
        "webhooks secret show",
        "webhooks secret rotate",
        "check",
    ],
)
def test_a_command_on_a_database_passes_it_on(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("scoreline.server_process.exec_server_module", lambda _m, _c, words: given.append(list(words)))
    for options in ([], ["--json"]):
        assert CliRunner().invoke(app, [*command.split(), *options]).exit_code == 0
    without, with_json = given
    place = without.index("--") if "--" in without else len(without)
    assert with_json == [*without[:place], "--json", *without[place:]]
