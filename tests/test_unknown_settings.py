"""A misspelt setting is said in the log instead of being left at its default without a word."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from settings.slice import SettingsSlice
from settings.unknown import SLICES, unknown_variables, warn_of_unknown_variables

ROOT = Path(__file__).parents[1]
SET_SOMEWHERE = [
    *(ROOT / name for name in ("Dockerfile", "docker-compose.yml", ".env.example", "Makefile")),
    *(ROOT / "scoreline").glob("*.py"),
    *(ROOT / "benchmarks").glob("*.py"),
    *(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)),
]


def test_all_slices_are_known() -> None:
    assert set(SLICES) == set(SettingsSlice.__subclasses__())


def test_what_nothing_reads_is_named_with_what_is_near() -> None:
    environment = {
        "SCORELINE_LEASE_SECOND": "5",
        "scoreline_modle": "x",
        "SCORELINE_ZZZZZZ": "1",
        "SCORELINE_PORT": "8000",
        "scoreline_host": "::1",
        "SCORELINE_URL": "http://localhost",
        "OTHER": "1",
    }
    assert unknown_variables(environment) == {
        "SCORELINE_LEASE_SECOND": "SCORELINE_LEASE_SECONDS",
        "SCORELINE_ZZZZZZ": None,
        "scoreline_modle": "SCORELINE_MODEL",
    }


def test_one_line_says_it_and_none_where_there_is_nothing_to_say() -> None:
    with capture_logs() as logs:
        warn_of_unknown_variables({"SCORELINE_PORTS": "1", "SCORELINE_ZZZZZZ": "1"})
        warn_of_unknown_variables({"SCORELINE_PORT": "1"})
    [line] = logs
    assert line["log_level"] == "warning"
    assert line["variables"] == ["SCORELINE_PORTS (is it SCORELINE_PORT?)", "SCORELINE_ZZZZZZ"]


def test_whatever_the_project_itself_sets_is_known() -> None:
    named = {name for path in SET_SOMEWHERE for name in re.findall(r"\bSCORELINE_[A-Z_]*[A-Z]\b", path.read_text())}
    assert len(named) > 50
    assert unknown_variables(dict.fromkeys(named, "")) == {}


@pytest.mark.parametrize("module", ["api", "workers.engine_loop", "workers.delivery"])
def test_the_roles_say_it_when_they_start(module: str) -> None:
    """And then stop, for want of a model or of a pause that is one: that is not what this is about."""
    process = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env=os.environ
        | {"SCORELINE_MODEL": "/nowhere/at/all", "SCORELINE_LEASE_SECOND": "5", "SCORELINE_DELIVERY_POLL_SECONDS": "0"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    first = json.loads(process.stderr.splitlines()[0])
    assert (first["level"], first["variables"]) == (
        "warning",
        ["SCORELINE_LEASE_SECOND (is it SCORELINE_LEASE_SECONDS?)"],
    )
