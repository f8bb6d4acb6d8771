"""How the embedded service starts, hears and stops its processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from scoreline import embedded
from scoreline.data_directory import CALIBRATIONS_FOLDER, DataDirectory
from scoreline.embedded import STOP_SECONDS, Child, EmbeddedService, EmbeddedSettings, StopRequest
from scoreline.exit_codes import CommandError
from scoreline.terminal.log_lines import LogLine
from scoreline.up import stop_signals
from tests.services import wait_until

TALKATIVE = """
import os, sys
from rich.console import Console
from scoreline.embedded import Child
from scoreline.terminal.progress_display import ProgressDisplay

display = ProgressDisplay(Console())
display.shows = lambda line: True
child = Child("worker", [sys.executable, "-S", "-c", "print(('x' * 1_000 + chr(10)) * 200)"], {}, display.on_log_line)
child.start()
os._exit(child.process.wait(20))
"""
"""A program whose child logs more than a pipe holds, and that shows each line."""

WHEN_TOLD = (
    "import signal; told = {signal.SIGTERM}, {signal.SIGUSR1}; "
    "[signal.pthread_sigmask(signal.SIG_BLOCK, one) for one in told]; "
    "print('ready', flush=True); [signal.sigwait(one) for one in told]"
)
"""A program that is told to stop by SIGTERM, and that has stopped when SIGUSR1 comes."""


@pytest.mark.parametrize("output", ["/dev/full", "a closed pipe"])
def test_a_process_goes_on_when_what_it_logs_can_not_be_shown(output: str) -> None:
    if output == "/dev/full":
        writing = os.open(output, os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    try:
        done = subprocess.run([sys.executable, "-c", TALKATIVE], stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    assert done.returncode == 0, done.stderr


def test_a_process_has_the_time_to_stop_that_its_settings_give_it_and_the_worker_has_its_own_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: list[str] = []

    def on_line(role: str, _line: LogLine) -> None:
        ready.append(role)

    service = EmbeddedService(EmbeddedSettings(None, tmp_path), StopRequest(), on_line)
    children = [Child(role, [sys.executable, "-S", "-c", WHEN_TOLD], {}, on_line) for role in ("api", "worker")]
    for child in children:
        service._children.append(child)
        child.start()
    wait_until(lambda: len(ready) == 2, "both are ready")
    monkeypatch.setenv("SCORELINE_DRAIN_SECONDS", "30")
    monkeypatch.setenv("SCORELINE_WEBHOOK_TIMEOUT_SECONDS", "40.5")
    given = STOP_SECONDS + 30 + 40
    ends = dict(zip((given, given + STOP_SECONDS - 1), children, strict=True))
    now = 0.0

    def pass_time(_seconds: float) -> None:
        nonlocal now
        now += 1.0
        if child := ends.get(now):
            child.process.send_signal(signal.SIGUSR1)
            child.process.wait()

    monkeypatch.setattr(embedded, "time", SimpleNamespace(monotonic=lambda: now, sleep=pass_time))
    service.close()
    assert [child.process.returncode for child in children] == [0, 0], "none was killed"


def test_a_signal_that_was_to_be_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.count == 1
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_data_directory_that_can_not_be_locked_or_filled_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_supported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", not_supported)
        with pytest.raises(CommandError, match=f"^the data directory {tmp_path} can't be used: No locks available$"):
            DataDirectory(tmp_path).lock()
    file = tmp_path / CALIBRATIONS_FOLDER
    file.touch()
    with pytest.raises(CommandError, match=f"^the data directory {tmp_path} can't be used: {file}: File exists$"):
        DataDirectory(tmp_path).add_to({})
