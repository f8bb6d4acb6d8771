"""The import rules between rooms hold (the table is in pyproject.toml and docs/architecture.md)."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_room_imports_what_it_may_not() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    outcome = subprocess.run([linter, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "0 broken" in outcome.stdout
