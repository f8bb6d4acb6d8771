"""The reference lists everything: each setting, each command with its options, each route, and the whole client."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer.main

import scoreline
from api.application import with_routes
from docs.site.links import headings_of
from docs.site.reference import GENERATED
from docs.site.reference.docstrings import as_markdown
from docs.site.reference.schemas import kind
from docs.site.reference.settings import page as settings_page
from scoreline import Client
from scoreline.command import app
from settings.unknown import CLIENT_VARIABLES, SLICES


@cache
def generated(name: str) -> str:
    """Return the page of a name."""
    return GENERATED[name]()


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_has_one_title_and_no_heading_twice(name: str) -> None:
    page = generated(name)
    assert page.startswith("# ")
    headings = headings_of(page)
    assert len(headings) == len(set(headings)) > 5


def test_every_setting_is_there_with_what_it_can_be_and_what_it_is() -> None:
    rows = {line.split(" | ")[0]: line for line in settings_page().splitlines() if line.startswith("| `SCORELINE_")}
    fields = {f"| `SCORELINE_{name.upper()}`": field for one in SLICES for name, field in one.model_fields.items()}
    assert set(rows) == set(fields)
    assert all((field.description or "?").replace("|", "\\|") in rows[name] for name, field in fields.items())
    assert all(f"`SCORELINE_{name}`" in settings_page() for name in CLIENT_VARIABLES)
    assert "| a whole number from 0 to 65535 | `8000` |" in rows["| `SCORELINE_PORT`"]
    assert "| unset |" in rows["| `SCORELINE_BOOTSTRAP_KEY`"]


def all_commands() -> Iterator[tuple[str, Any]]:
    """Every command that can be typed, and the groups of commands."""
    waiting = [("scoreline", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        yield name, command
        waiting += [(f"{name} {word}", one) for word, one in getattr(command, "commands", {}).items()]


def test_every_command_is_there_with_all_of_its_options() -> None:
    page = generated("command")
    sections = {section.split("\n")[0].strip(): section for section in page.split("\n## ")[1:]}
    found = dict(all_commands())
    assert set(sections) == set(found)
    assert {"scoreline run", "scoreline keys create", "scoreline jobs watch", "scoreline"} <= set(found)
    for name, command in found.items():
        for parameter in command.params:
            for option in parameter.opts:
                shown = option if option.startswith("-") else parameter.metavar or option
                assert shown in sections[name], (name, option)


def test_every_route_and_every_shape_of_the_service_is_there() -> None:
    document = with_routes().openapi()
    headings = set(headings_of(generated("routes")))
    routes = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert "POST /v1/score" in routes
    assert routes | set(document["components"]["schemas"]) | set(document["webhooks"]) <= headings


def test_the_whole_client_is_there() -> None:
    page = generated("client")
    headings = set(headings_of(page))
    methods = {name: getattr(Client, name) for name in dir(Client) if not name.startswith("_")}
    assert {"score", "map", "wait", "batch_events", "close"} <= set(methods)
    assert {f"Client.{name}" for name in methods} <= headings
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert set(scoreline.__all__) <= headings | listed
    assert not [line for line in page.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    for name, method in methods.items():
        section = page.partition(f"### Client.{name}\n")[2].partition("\n#")[0]
        assert all(option in section for option in inspect.signature(method).parameters if option != "self")


def test_a_docstring_becomes_markdown() -> None:
    docstring = """Do :meth:`this`.

    one: a thing. It is small. two, three: others; one: again.

    >>> 1 + 1
    2
    """
    assert as_markdown(inspect.cleandoc(docstring), ("one", "two", "three")) == (
        "Do `this`.\n\n- `one`: a thing. It is small.\n- `two`, `three`: others;\n- `one`: again.\n\n"
        "```pycon\n>>> 1 + 1\n2\n```"
    )


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "a whole number (at least 1)"),
        ({"type": "integer", "minimum": 0, "maximum": 9}, "a whole number (0 or more, at most 9)"),
        ({"type": "number", "exclusiveMinimum": 0}, "a number (more than 0)"),
        ({"anyOf": [{"$ref": "#/components/schemas/Job"}, {"type": "null"}]}, "[Job](#job) or null"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, 'a list of `"a"`, `"b"`'),
        (
            {"type": "array", "items": {"type": "array", "items": {"type": "string"}}, "minItems": 1},
            "a list of lists of texts (not empty)",
        ),
        (
            {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 16},
            "an object with texts under names of their own (16 at most)",
        ),
        ({}, "anything"),
    ],
)
def test_a_schema_is_told_in_words(schema: dict[str, object], words: str) -> None:
    assert kind(json.loads(json.dumps(schema))) == words
