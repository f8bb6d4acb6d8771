"""A misspelt setting is reported in the log instead of being ignored silently."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from settings.slice import SettingsSlice
from settings.unknown import SLICES, unknown_variables, warn_of_unknown_variables
from tests.forked.running import SERVER, WORKER, run

ROOT = Path(__file__).parents[1]
SET_SOMEWHERE = [
    *(ROOT / name for name in ("Dockerfile", "docker-compose.yml", ".env.example", "Makefile")),
    *(ROOT / "scoreline").glob("*.py"),
    *(ROOT / "benchmarks").glob("*.py"),
    *(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)),
]


def test_every_slice_is_listed() -> None:
    assert set(SLICES) == set(SettingsSlice.__subclasses__())


def test_unknown_variables_are_found_with_the_most_similar_setting() -> None:
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


def test_unknown_variables_are_logged_in_one_line_and_known_ones_are_not() -> None:
    with capture_logs() as logs:
        warn_of_unknown_variables({"SCORELINE_PORTS": "1", "SCORELINE_ZZZZZZ": "1"})
        warn_of_unknown_variables({"SCORELINE_PORT": "1"})
    [line] = logs
    assert line["log_level"] == "warning"
    assert line["variables"] == ["SCORELINE_PORTS (is it SCORELINE_PORT?)", "SCORELINE_ZZZZZZ"]


def test_all_variables_that_the_project_sets_are_known() -> None:
    named = {name for path in SET_SOMEWHERE for name in re.findall(r"\bSCORELINE_[A-Z_]*[A-Z]\b", path.read_text())}
    assert len(named) > 50
    assert unknown_variables(dict.fromkeys(named, "")) == {}


@pytest.mark.parametrize(
    "module",
    ["workers.delivery", *(pytest.param(module, marks=pytest.mark.slow) for module in ("api", "workers.engine_loop"))],
)
def test_every_process_reports_unknown_variables_when_it_starts(module: str) -> None:
    """The processes then stop, because the model is missing or the poll interval is invalid."""
    environment = os.environ | {
        "SCORELINE_MODEL": "/nowhere/at/all",
        "SCORELINE_LEASE_SECOND": "5",
        "SCORELINE_DELIVERY_POLL_SECONDS": "0",
    }
    process = run("-m", module, imports=(*SERVER, *WORKER), environment=environment)
    first = json.loads(process.stderr.splitlines()[0])
    assert (first["level"], first["variables"]) == (
        "warning",
        ["SCORELINE_LEASE_SECOND (is it SCORELINE_LEASE_SECONDS?)"],
    )
