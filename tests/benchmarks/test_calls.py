"""The command that measures calls."""

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.calls.load import MissingWrkError, find_wrk
from benchmarks.calls.processor_time import cpu_seconds, family
from tests.services import wait_until

ROOT = Path(__file__).parents[2]
FIGURES = {"per_s", "median_ms", "p99_ms", "not_200"} | {
    f"{role}_cpu_ms" for role in ("api", "worker", "database", "redis", "other", "load")
}
MARK = "CALLS_TEST_MARK"
SHORT = ("--clients", "2", "--items", "1", "10", "--seconds", "1", "--warm-up", "1")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.calls", *arguments]


def marked(mark: str) -> list[str]:
    """The command lines of all processes that have inherited a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture
def wrk() -> None:
    """Skip the test where wrk is not installed."""
    try:
        find_wrk()
    except MissingWrkError as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("wrk")
def test_every_system_is_measured_and_nothing_is_left_running() -> None:
    mark = secrets.token_hex(8)
    environment = os.environ | {MARK: mark}
    arguments = ("--systems", "ours_postgres", "ours_embedded", "celery", "bare", *SHORT)
    outcome = subprocess.run(command(*arguments), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout.splitlines()[-1])
    assert set(report) == {"calls", "machine", "engine_items_per_s"}
    assert report["engine_items_per_s"]["2x10"] > 0
    assert set(report["calls"]) == {"ours_postgres", "ours_embedded", "celery", "bare"}
    for name, levels in report["calls"].items():
        assert set(levels["2"]) == FIGURES
        assert set(levels["2x10"]) == FIGURES | {"share_of_engine"}
        for figures in levels.values():
            assert figures["not_200"] == 0
            assert figures["per_s"] > 0
            assert figures["api_cpu_ms"] > 0
            assert (figures["worker_cpu_ms"] > 0) == (name != "bare")
            assert (figures["database_cpu_ms"] > 0) == (name == "ours_postgres")
    wait_until(lambda: marked(mark) == [], "no process is left", 30)


@pytest.mark.slow
@pytest.mark.usefixtures("wrk")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_running_when_it_is_stopped_in_a_measurement(number: signal.Signals) -> None:
    mark = secrets.token_hex(8)
    measuring = subprocess.Popen(
        command("--systems", "ours_postgres", "--clients", "2", "--seconds", "60", "--warm-up", "60"),
        cwd=ROOT,
        env=os.environ | {MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: any(line.startswith(find_wrk()) for line in marked(mark)), "wrk is running", 120)
    measuring.send_signal(number)
    assert measuring.wait(60) != 0
    # A helper process of Python's own ends by itself, a moment after the process that it belongs to.
    wait_until(lambda: marked(mark) == [], "no process is left", 30)


def test_without_wrk_it_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    outcome = subprocess.run(
        command(), cwd=ROOT, env=os.environ | {"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    assert outcome.stderr == "wrk is not installed: apt-get install wrk\n"


def test_the_time_of_a_process_contains_that_of_its_descendants_running_or_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    script = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {burn!r}])
child = subprocess.Popen([sys.executable, "-c", {burn + "print(flush=True); input()"!r}], stdin=subprocess.PIPE)
input()
child.communicate(b"\\n")
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # both have used their time: one has ended, and one has not
        assert len(family([process.pid])) == 2
        assert cpu_seconds(family([process.pid])) >= 0.55
        assert cpu_seconds([process.pid]) < 0.55
        process.communicate(b"\n")
