"""Run commands of the service as processes that are forked from one that has imported the service.

Most of the time of a short command goes into importing. A forked process has its own environment, folder, files and
exit status, as one that a user starts. Only imports are not its own: tests of what is imported start Python themselves.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = ("scoreline.command",)
ON_A_DATABASE = (*COMMAND, "operations.command", "operations.keys", "operations.tenants", "operations.webhook_secret")
TOKENIZER = ("transformers.models.auto.tokenization_auto",)
"""What loads a tokenizer."""
WORKER = (
    *TOKENIZER,
    "workers.engine_loop.__main__",
    "checkpoints.progress",
    "scoring.served_checkpoint",
    "scoring.planning.description",
    "model.engine",
)
SERVER = (
    *ON_A_DATABASE,
    "operations.check",
    "operations.prepare",
    "api.__main__",
    "api.application",
    "workers.delivery.__main__",
)
DEPLOYED = (*SERVER, *WORKER, "operations.migrate")
"""What is imported before a process is forked."""

POLL_SECONDS = 0.01
_numbers = itertools.count(1)


class Parent:
    """The process that others are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.forked.parent"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TRANSFORMERS_VERBOSITY": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what is read ahead would not be waited for
        )
        self._turn = threading.Lock()
        atexit.register(self.close)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _answer(self, timeout: float | None = None) -> int:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return int(self._process.stdout.readline())

    def _fork(self, request: Mapping[str, object]) -> int:
        """Fork a process and return its id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()  # once all is imported

    def start(self, request: Mapping[str, object]) -> int:
        """Fork a process that goes on, and return its id."""
        with self._turn:
            return self._fork(request)

    def run(self, request: Mapping[str, object], timeout: float) -> int:
        """Fork a process and return its exit status once it has ended."""
        with self._turn:
            child = None
            try:
                child = self._fork(request)
                return self._answer(timeout)
            except BaseException:  # a test's own timeout, too
                if child is not None:
                    os.kill(child, signal.SIGKILL)
                self.close()
                _parent.cache_clear()
                raise


@cache
def _parent(imports: Sequence[str] | None) -> Parent:
    """Return the parent into which only these modules are imported, or the one for all others."""
    return Parent()


def _request(
    command: Sequence[str],
    files: Sequence[Path],
    *,
    imports: Sequence[str],
    environment: Mapping[str, str],
    folder: Path = ROOT,
    status: Path | None = None,
) -> dict[str, object]:
    """What the parent is asked for.

    files: for the standard input, output and errors; status: the file for the exit status, of a process that goes on.
    """
    return {
        "arguments": command,
        "environment": {**environment, "PYTHONPATH": str(ROOT)},
        "folder": str(folder),
        "files": list(map(str, files)),
        "imports": list(imports),
        "status": None if status is None else str(status),
    }


def run(
    *command: str,
    imports: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    folder: Path = ROOT,
    given: str = "",
    timeout: float = 120.0,
    nothing_else: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``scoreline …`` or ``-m module …`` to its end.

    imports: what has been imported before; given: its standard input; nothing_else: whether nothing that other tests
    want to be imported may be there, for modules that read the environment when they are imported.
    """
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / part for part in ("input", "output", "errors")]
        for file in files:
            file.touch()
        files[0].write_text(given)
        request = _request(command, files, imports=imports, environment=environment, folder=folder)
        status = _parent(tuple(imports) if nothing_else else None).run(request, timeout)
        return subprocess.CompletedProcess(command, status, files[1].read_text(), files[2].read_text())


class Forked:
    """A forked process that goes on beside the test, which ends it."""

    def __init__(self, process_id: int, status: Path) -> None:
        """status: the file that says how it has ended, once it has."""
        self.pid = process_id
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        if self.returncode is None and self._status.exists():
            self.returncode = int(self._status.read_text())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended. Raises TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def start(
    *command: str, imports: Sequence[str], log: Path, environment: Mapping[str, str] = os.environ, folder: Path = ROOT
) -> Forked:
    """Start ``scoreline …`` or ``-m module …``, which goes on beside the test.

    imports: what has been imported before; log: what its output and its errors are appended to.
    """
    log.touch()
    status = log.with_name(f"{log.name}-{next(_numbers)}.status")
    nothing = Path(os.devnull)
    request = _request(
        command, (nothing, log, log), imports=imports, environment=environment, folder=folder, status=status
    )
    return Forked(_parent(None).start(request), status)
