"""A small form of the measurement of ``scoreline run``: interrupted, killed, and with a service that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_no_row_is_lost_or_scored_twice_whatever_is_killed() -> None:
    sizes = ("--pairs", "4000", "--queries", "40", "--window-rows", "400", "--database", "sqlite")
    outcome = subprocess.run(
        [sys.executable, "-m", "benchmarks.runs", *sizes, "--interrupt"], cwd=ROOT, capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout.splitlines()[-1])
    assert (report["rows"], report["wrong"], report["scored_items"], report["starts"]) == (4_000, 0, 4_000, 5)
