"""``scoreline demo``, on the real engine and the demonstration model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from scoreline.server_process import DEMONSTRATION_JOBS
from tests.scoreline.running import ROOT, gone
from tests.services import wait_until

pytestmark = pytest.mark.slow  # `make demo` shows the same

DEMO = [sys.executable, "-c", "from scoreline.command import main; main()", "demo"]
ENTRIES = json.loads(DEMONSTRATION_JOBS.read_text())
ROW = re.compile(r"^ *(\d+) .*?((?: +[01]\.\d{4})+)$")


def children(process_id: int) -> list[int]:
    """Return the ids of the processes that a demo started."""
    found = subprocess.run(["pgrep", "-f", f"scoreline.child {process_id} "], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of the demo, started in a folder that is not the checkout."""
    folder = tmp_path_factory.mktemp("demo")
    before = set(Path(tempfile.gettempdir()).glob("scoreline-demo-*"))
    started = time.monotonic()
    environment = os.environ | {"COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(DEMO, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""
    assert time.monotonic() - started < 60.0
    assert set(Path(tempfile.gettempdir()).glob("scoreline-demo-*")) <= before, "its data is gone"
    assert list(folder.iterdir()) == []
    return run.stdout


def test_every_query_is_printed_with_all_of_its_items(output: str) -> None:
    for entry in ENTRIES:
        assert entry["title"] in output
        assert entry["body"]["query"].strip() in output
        for item in entry["body"]["items"]:
            assert item.strip().replace("\n", " ⏎ ") in output


def test_items_are_ranked_by_their_scores(output: str) -> None:
    for entry in ENTRIES:
        table = output.split(entry["title"])[1].split("query:")[1]
        labels = entry["body"]["labels"]
        rows = [match for line in table.splitlines() if (match := ROW.match(line.rstrip()))][
            : len(entry["body"]["items"])
        ]
        assert sorted(int(row[1]) for row in rows) == list(range(len(entry["body"]["items"])))
        scores = [[float(score) for score in row[2].split()] for row in rows]
        if entry["rank_by"] is None:
            assert [int(row[1]) for row in rows] == list(range(len(rows)))
            assert "ranked:" not in table.partition("\n\n")[0]
        else:
            by = [row[labels.index(entry["rank_by"])] for row in scores]
            assert by == sorted(by, reverse=True)
        if entry["body"]["apply_softmax"]:
            assert all(abs(sum(row) - 1) < 0.001 for row in scores)


def test_the_demo_ends_with_the_command_to_run_next(output: str) -> None:
    assert output.splitlines()[-2] == "  scoreline up"


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_worker_that_dies_during_the_demo_is_restarted_unless_it_is_interrupted(interrupted: bool) -> None:
    # The work of a dead worker waits for its lease.
    environment = os.environ | {"SCORELINE_LEASE_SECONDS": "5"}
    with subprocess.Popen(
        DEMO, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        next(line for line in demo.stdout if "Scoreline is running" in line)
        processes = children(demo.pid)
        os.kill(worker_of(processes), signal.SIGKILL)
        if interrupted:
            demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=150)
    assert demo.returncode == (130 if interrupted else 0), said
    assert gone(processes)


def worker_of(processes: list[int]) -> int:
    (worker,) = [one for one in processes if b"workers.engine_loop" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return worker


def test_ctrl_c_during_the_demo_leaves_no_process_behind() -> None:
    demo = subprocess.Popen(DEMO, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: len(children(demo.pid)) == 3, "its processes are there")
    processes = children(demo.pid)
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert "Traceback" not in said
    assert gone(processes)
