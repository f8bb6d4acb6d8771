"""Run ``scoreline up`` as in a user's terminal, with the stand-in worker or the real one, or its processes alone."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import httpx2

from scoreline.data_directory import DataDirectory
from scoreline.server_process import DATABASE_VARIABLE, embedded_database
from tests.forked.running import COMMAND, SERVER, TOKENIZER, run, start
from tests.services import free_port, stat_of, wait_until

ROOT = Path(__file__).parents[2]


def gone(process_ids: list[int]) -> bool:
    """Whether all of these processes have ended. A zombie counts as ended."""
    for process_id in process_ids:
        try:
            state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            return False
    return True


STAND_IN = ("-m", "tests.scoreline.stand_in_up")
REAL = ("-c", "from scoreline.command import main; main()")
"""Python's arguments for the command with the real worker; STAND_IN has those with the stand-in."""


def scoreline(*arguments: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command. given: its standard input; variables: of its environment."""
    return run("scoreline", *arguments, imports=COMMAND, environment=os.environ | variables, given=given)


class Up(Protocol):
    """An embedded service that is up."""

    data: Path

    @property
    def url(self) -> str: ...

    @property
    def worker(self) -> int:
        """The id of the worker's process."""

    @contextmanager
    def worker_frozen(self) -> Iterator[None]:
        """Stop the worker's process for the block, so that jobs wait. If it is still there, it goes on afterwards."""
        worker = self.worker
        with closing(sqlite3.connect(self.data / "scoreline.db", timeout=30, isolation_level=None)) as database:
            # Frozen with the lock of SQLite, it would keep it from all others.
            database.execute("BEGIN IMMEDIATE")
            os.kill(worker, signal.SIGSTOP)
            wait_until(lambda: stat_of(worker)[0] == "T", "the worker is frozen")
            database.execute("ROLLBACK")
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)


class ForkedUp(Up):
    """The processes that ``scoreline up`` starts, with the stand-in worker, forked from one that has imported them.

    For tests that only use a service: they need not wait for the imports, which take most of the time of a start.
    """

    def __init__(self, model: Path, folder: Path, **variables: str) -> None:
        self.data = folder / "data"
        self._port = free_port()
        environment = os.environ | {
            DATABASE_VARIABLE: embedded_database(self.data),
            "SCORELINE_BELL_SOCKET": str(self.data / "bell"),
            "SCORELINE_PORT": str(self._port),
            "SCORELINE_MODEL": str(model),
            **variables,
        }
        directory = DataDirectory(self.data)
        directory.lock()
        directory.add_to(environment)
        directory.release()
        imports = (*SERVER, *TOKENIZER, "tests.scoreline.stand_in_worker")
        prepared = run("-m", "operations.prepare", imports=imports, environment=environment)
        assert prepared.returncode == 0, prepared.stderr
        logs = {name: folder / f"{name}.log" for name in ("api", "workers.delivery", "tests.scoreline.stand_in_worker")}
        self._processes = [
            start("-m", name, imports=imports, log=log, environment=environment) for name, log in logs.items()
        ]
        wait_until(lambda: self._is_ready([*logs.values()]), "the service is ready", 60)

    def _is_ready(self, logs: list[Path]) -> bool:
        for process, log in zip(self._processes, logs, strict=True):
            assert process.poll() is None, log.read_text()
        with suppress(httpx2.TransportError):
            said = all('"event": "ready"' in log.read_text() for log in logs[1:])
            return said and httpx2.get(f"{self.url}/readyz", trust_env=False).is_success
        return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def worker(self) -> int:
        return self._processes[-1].pid

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(20)


class CommandUp(Up):
    """A running ``scoreline up``, whose output goes to a file."""

    def __init__(
        self,
        model: Path | str | None,
        folder: Path,
        *arguments: str,
        cwd: Path = ROOT,
        stand_in: str = "",
        command: tuple[str, str] = STAND_IN,
        **variables: str,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / "output"
        environment = os.environ | {"STAND_IN": stand_in, "PYTHONPATH": str(ROOT)}
        environment.pop("SCORELINE_MODEL", None)
        environment |= variables
        options = {"--data": str(folder / "data"), "--port": "0"}
        options |= {} if model is None else {"--model": str(model)}
        options |= dict(zip(arguments[::2], arguments[1::2], strict=True))
        self.data = cwd / options["--data"]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", *command, "up"),
                    *(word for option in options.items() for word in option),
                ],
                cwd=cwd,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def url(self) -> str:
        found = re.search(r"ready at (http://\S+),", self.output)
        assert found is not None, self.output
        return found[1]

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        self.wait_until_said("Scoreline is ready at", seconds)
        self.wait_until_said("curl")

    def wait_until_said(self, words: str, seconds: float = 60.0) -> None:
        def said() -> bool:
            assert self.process.poll() is None or words in self.output, self.output
            return words in self.output

        wait_until(said, f"it says “{words}”", seconds)

    def children(self) -> dict[str, int]:
        """The ids of the child processes, by module. Each has its parent's id on its command line."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if "scoreline.child" in words and str(self.process.pid) in words and state != "Z":
                found[words[words.index(str(self.process.pid)) + 1]] = int(entry.name)
        return found

    @property
    def worker(self) -> int:
        return self.children()["tests.scoreline.stand_in_worker"]

    def end(self, with_signal: signal.Signals) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(with_signal)
        return self.process.wait(40)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
