"""``docs/architecture.md`` and the pages behind it name files that are there, and it allows the imports that
``pyproject.toml`` allows."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from docs.site.reference import files

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def _import_linter() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    settings: dict[str, Any] = project["tool"]["importlinter"]
    return settings


ROOMS: tuple[str, ...] = tuple(_import_linter()["root_packages"])


BESIDE = ("docs", "migrations", "deploy", "tests", "benchmarks")
"""Folders that are no rooms, and that pages name as well."""


def _section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def _files_of(text: str) -> list[str]:
    return re.findall(rf"`((?:{'|'.join(ROOMS)}|{'|'.join(BESIDE)})/[\w./-]*)`", text)


def test_no_change_is_listed_twice() -> None:
    rows = _section("Where to make a change")
    asked = [line.split(" | ")[0] for line in rows.splitlines() if line.startswith("| ")]
    assert len(asked) == len(set(asked))
    assert len(_files_of(rows)) > 80


@pytest.mark.parametrize("page", ["architecture", "queue", "api-processes", "engine", "algorithms", "limits", "keys"])
def test_every_file_that_a_page_of_the_inside_names_is_there(page: str) -> None:
    named = _files_of((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_may_import_what_its_contracts_allow(room: str) -> None:
    row = next(line for line in _section("Rooms").splitlines() if line.startswith(f"| `{room}/` |"))
    allowed = set(re.findall(r"`(\w+)`", row.split(" | ")[1]))
    forbidden = {
        module
        for contract in _import_linter()["contracts"]
        if contract["type"] == "forbidden" and room in contract["source_modules"]
        for module in contract["forbidden_modules"]
    }
    assert allowed == set(ROOMS) - forbidden - {room}


def test_every_file_of_the_rooms_says_what_it_holds() -> None:
    assert set(files.ROOMS) == set(ROOMS)
    rows = [line for line in files.page().splitlines() if line.startswith("| `")]
    assert len(rows) > 400
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_layers_of_jobs_are_those_of_their_contract() -> None:
    layers = next(contract["layers"] for contract in _import_linter()["contracts"] if contract["type"] == "layers")
    rule = next(
        line for line in re.split(r"\n(?=- )", _section("Rooms")) if line.startswith("- **`jobs/` has layers.**")
    )
    named = re.findall(r"`(jobs/\w+)(?:\.py|/)`", rule.split("From top to bottom")[1])
    assert [name.replace("/", ".") for name in named] == layers
