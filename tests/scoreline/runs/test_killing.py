"""A run that is killed at any statement is finished by the same command, and leaves nothing over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scoreline.running import ROOT, Up

QUICK_STEP = 61
"""Every so many statements. With a step of 1, a run is killed at each of its statements, which takes minutes."""


@pytest.mark.parametrize(
    ("ending", "step"),
    [
        ("jsonl", QUICK_STEP),
        pytest.param("parquet", 3 * QUICK_STEP, marks=pytest.mark.slow),
        pytest.param("parquet", QUICK_STEP // 3, marks=(pytest.mark.matrix, pytest.mark.timeout(1_800))),
    ],
)
def test_a_run_that_was_killed_at_any_statement_is_finished(
    shared_up: Up, tmp_path: Path, ending: str, step: int
) -> None:
    pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.scoreline.runs.killing", tmp_path, shared_up.url, ending, str(step)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
