"""``scoreline check``: what it prints, and how it exits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import text

from jobs.invariants import CHECKS
from jobs.store.database import Database
from settings.store import StoreSettings
from tests.databases import quick_on
from tests.forked.running import SERVER, run
from tests.jobs.work import finish_all, submit, take
from tests.services import free_port


def check(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``scoreline check`` from a folder outside the project."""
    environment = os.environ | {"SCORELINE_DATABASE_URL": url}
    return run("scoreline", "check", imports=SERVER, environment=environment, folder=folder)


@quick_on("sqlite")
def test_every_invariant_is_reported_as_held_or_violated(store_url: str, tmp_path: Path) -> None:
    database = Database.open(StoreSettings(database_url=store_url))
    submit(database, chunks=2)
    finish_all(database, take(database))
    broken = submit(database, chunks=2)
    outcome = check(store_url, tmp_path)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["ok", check.name] for check in CHECKS]
    assert lines[-1] == f"all {len(CHECKS)} rules hold"

    with database.write() as connection:
        connection.execute(text("UPDATE jobs SET remaining_chunks = 1 WHERE id = :id"), {"id": broken})
    database.close()
    outcome = check(store_url, tmp_path)
    assert (outcome.returncode, outcome.stderr) == (1, "")
    lines = outcome.stdout.splitlines()
    [said] = (number for number, line in enumerate(lines) if "VIOLATED" in line)
    assert "remaining_chunks_miscounted" in lines[said]
    assert lines[said + 1].split() == ["not", "so:", broken]
    assert lines[-1] == f"1 of {len(CHECKS)} rules are broken"


@pytest.mark.slow
def test_a_store_that_can_not_be_read_has_an_exit_status_of_its_own(tmp_path: Path) -> None:
    nowhere = f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/none"
    for url, code in ((nowhere, 3), (f"sqlite:///{tmp_path / 'empty.db'}", 3), ("mysql://a/b", 2), ("no url", 2)):
        outcome = check(url, tmp_path)
        assert (outcome.returncode, outcome.stdout) == (code, ""), url
        assert "Traceback" not in outcome.stderr
        [line] = outcome.stderr.splitlines()
        assert line.startswith("scoreline: SCORELINE_DATABASE_URL is ")
    assert list(tmp_path.iterdir()) == []
