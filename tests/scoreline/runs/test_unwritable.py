"""Where a run can't write, it says so on one line, and can go on once it can."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from scoreline.runs.journal import Journal
from tests.scoreline.running import REAL, ROOT, Up
from tests.scoreline.runs.files import ROWS, read_csv, write_csv

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from scoreline.command import main
main()
"""
"""The command, with a limit on the size of each file that it writes."""


def scored(source: Path, output: str, url: str, limit: int) -> subprocess.CompletedProcess[str]:
    options = ("--query-column", "query", "--item-column", "item", "--label", " yes", "--window-rows", "15")
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), "run", str(source), *options, "-o", output],
        cwd=ROOT,
        env=os.environ | {"SCORELINE_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("characters_of_notes", "limit", "what"),
    [(50_000, 500_000, "the output can't be written: File too large"), (1, 60_000, "the journal ")],
)
def test_a_disk_without_room_is_one_line_and_the_run_goes_on_later(
    shared_up: Up, tmp_path: Path, characters_of_notes: int, limit: int, what: str
) -> None:
    rows = [row | {"note": "x" * characters_of_notes} for row in ROWS]
    source, target = write_csv(tmp_path / "in.csv", rows), tmp_path / "out.csv"
    stopped = scored(source, str(target), shared_up.url, limit)
    assert stopped.returncode == 1
    (line,) = [line for line in stopped.stderr.splitlines() if line.startswith("scoreline: ")]
    assert line.startswith(f"scoreline: {what}")
    assert line.endswith("; the same command goes on where this one has stopped")
    assert "Traceback" not in stopped.stderr
    went_on = scored(source, str(target), shared_up.url, 100_000_000)
    assert went_on.returncode == 0, went_on.stderr
    assert [row["id"] for row in read_csv(target)] == [row["id"] for row in rows]


def test_an_output_that_nobody_reads_is_one_line_and_the_exit_code_of_a_failure(shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS)
    reading, writing = os.pipe()
    os.close(reading)
    options = ("--query-column", "query", "--item-column", "item", "--label", " yes")
    ended = subprocess.run(
        [sys.executable, *REAL, "run", str(source), *options, "-o", "-"],
        cwd=ROOT,
        # Only what is kept in memory before it is written can be left over.
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        | {"SCORELINE_URL": shared_up.url},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    os.close(writing)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[1:] == ["scoreline: nobody reads the output any more"]


def test_that_its_time_can_not_be_noted_does_not_end_a_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", {})
    journal._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(sqlite3.OperationalError):
        journal.remember("model", "tiny")
    journal.add_seconds(7.0)
    assert journal.written.seconds == 7.0
    journal.close()
