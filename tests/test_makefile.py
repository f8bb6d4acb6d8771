"""``make demo`` installs what the service needs, ``make test`` the rest, in whichever order they are given."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICE, ALL = "requirements.txt", "requirements-dev.txt"
STAMPS = {SERVICE: ".installed-service", ALL: ".installed"}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone, as far as installing is concerned."""
    for name in ("Makefile", "pyproject.toml", SERVICE, ALL):
        shutil.copy(ROOT / name, tmp_path)
        os.utime(tmp_path / name, (0, 0))
    return tmp_path


def make(clone: Path, *targets: str) -> list[str]:
    """Return the lists of packages that make would install, and leave the stamps as if it had."""
    run = subprocess.run(["make", "--dry-run", *targets], cwd=clone, capture_output=True, text=True, check=True)
    lists = re.findall(r"pip install .* -r (\S+)", run.stdout)
    assert len(lists) == run.stdout.count("a minute or two, once."), "the first run says what takes long"
    for name in lists:
        (clone / ".venv").mkdir(exist_ok=True)
        (clone / ".venv" / STAMPS[name]).touch()
    return lists


def test_the_demo_installs_the_service_alone_and_the_tests_install_the_rest(clone: Path) -> None:
    assert make(clone, "demo") == [SERVICE]
    assert make(clone, "demo") == []
    assert make(clone, "test") == [ALL]
    assert make(clone, "test", "demo") == []


def test_the_tests_install_what_the_demo_needs(clone: Path) -> None:
    assert make(clone, "test") == [ALL]
    assert make(clone, "demo") == []


@pytest.mark.parametrize("first", ["demo", "test"])
@pytest.mark.parametrize("changed", [SERVICE, "pyproject.toml"])
def test_what_has_changed_is_installed_again(clone: Path, first: str, changed: str) -> None:
    installed = make(clone, first)
    later = (clone / ".venv" / STAMPS[installed[0]]).stat().st_mtime + 10
    os.utime(clone / changed, (later, later))
    assert make(clone, first) == installed
