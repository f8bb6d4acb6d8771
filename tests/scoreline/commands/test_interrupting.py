"""Ctrl-C ends a command at once, with one line at most and the exit code of its kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scoreline.exit_codes import ExitCode
from tests.scoreline.running import REAL, ROOT, Up
from tests.services import wait_until

LOADING = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "scoreline.command":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from scoreline.start import main
main()
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(shared_up: Up) -> Iterator[Start]:
    """Return a function that starts a command, whose input stays open."""
    started: list[subprocess.Popen[bytes]] = []

    def start_command(*arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *REAL, *arguments],
            cwd=ROOT,
            env=os.environ | {"SCORELINE_URL": shared_up.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start_command
    for process in started:
        process.kill()
        process.communicate()


def interrupt(process: subprocess.Popen[bytes]) -> tuple[int, list[str]]:
    """Press Ctrl-C, and return the exit code and the lines of errors."""
    process.send_signal(signal.SIGINT)
    code = process.wait(20)
    assert process.stderr is not None
    return code, process.stderr.read().decode().splitlines()


def reads_from_a_pipe(process_id: int) -> bool:
    """Whether a thread of a process waits for what comes out of a pipe."""
    return any("pipe_read" in path.read_text() for path in Path(f"/proc/{process_id}/task").glob("*/wchan"))


def test_while_a_run_waits_for_its_input(start: Start) -> None:
    columns = ("--query-column", "query", "--item-column", "item", "--label", "x", "--window-rows", "1")
    process = start("run", "-", "--input-format", "csv", "-o", "-", *columns)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"query,item\na,b\nc,d\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"query,item,x,label_mass\n"
    assert [process.stdout.readline()[:4] for _ in range(2)] == [b"a,b,", b"c,d,"]
    wait_until(lambda: reads_from_a_pipe(process.pid), "a thread waits for the next row")
    code, lines = interrupt(process)
    assert (code, lines[1:]) == (ExitCode.INTERRUPTED, ["scoreline: interrupted"])


def test_while_jobs_are_watched(start: Start) -> None:
    process = start("jobs", "watch")
    assert process.stdout is not None
    assert process.stdout.readline().split()[:2] == [b"job", b"status"]
    assert interrupt(process) == (ExitCode.INTERRUPTED, [])


def test_while_the_command_is_loaded() -> None:
    outcome = subprocess.run([sys.executable, "-c", LOADING], cwd=ROOT, capture_output=True, text=True)
    assert (outcome.returncode, outcome.stderr) == (ExitCode.INTERRUPTED, "")
