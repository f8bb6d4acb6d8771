"""The embedded service: API, worker and delivery of webhooks as child processes, on SQLite and a local socket.

The children end when this process does, however it ends. They have sessions of their own, so Ctrl-C in the terminal
reaches this process alone, which then stops them in order.
"""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from scoreline.client import KEY_VARIABLE
from scoreline.data_directory import DataDirectory
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.server_process import (
    DATABASE_VARIABLE,
    embedded_database,
    environment,
    python_command,
    require_server,
)
from scoreline.terminal.log_lines import LogLine

ROLES = {"api": "api", "worker": "workers.engine_loop", "deliver": "workers.delivery"}
"""The child processes and the modules that they run."""

MODEL_VARIABLE = "SCORELINE_MODEL"
BOOTSTRAP_KEY_VARIABLE = "SCORELINE_BOOTSTRAP_KEY"
POLL_SECONDS = 0.05
STOP_SECONDS = 20.0
"""Time that a process has to stop before it is killed: longer than the API gives requests in progress, and than the
default limit of an attempt to deliver a webhook. The settings of :data:`STOP_VARIABLES` are added to it."""

STOP_VARIABLES = ("SCORELINE_DRAIN_SECONDS", "SCORELINE_WEBHOOK_TIMEOUT_SECONDS")

QUICK_CRASH_SECONDS = 30.0
QUICK_CRASHES = 3
"""The service gives up when a process crashes this often in a row, each time this soon after its start."""

LEASE_SECONDS = 20.0
"""Shorter than in production: there is no network that could fail, and work goes on soon after a crash."""

LONGEST_SOCKET_PATH = 100  # bytes
KEPT_LINES = 30  # of each process's log


class StartError(CommandError):
    """A process ended before the service was ready."""

    def __init__(self, child: Child) -> None:
        refusal = child.refusal()
        super().__init__(f"the {child.role} did not start: {refusal or child.failure_reason()}", child.exit_code)
        self.role = child.role
        self.log = [] if refusal else list(child.log)  # empty if the message says it all


@dataclass(slots=True)
class StopRequest:
    """How often this process was told to stop. Signal handlers only count: taking a lock there could block forever."""

    count: int = 0

    def __bool__(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """What to serve and where."""

    model: str | None  # a folder, or the id of a model on the hub; None: the models of a catalogue
    data: Path  # directory for the database
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    model_name: str | None = None  # None: the folder's name, or the id
    processes: str = "1"  # of the API; "auto": one for each core
    models: Path | None = None  # a file with the models of the catalogue; None: the database has what it had


@dataclass(slots=True, eq=False)
class Child:
    """A child process and the last lines of its log."""

    role: str
    command: list[str]
    environment: dict[str, str]
    on_line: Callable[[str, LogLine], None]
    process: subprocess.Popen[str] = field(init=False)
    started_at: float = field(init=False)
    log: deque[LogLine] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    quick_crashes: int = 0
    models: set[str] = field(default_factory=set)  # those that it has logged to be ready, or not to be loadable
    _reader: threading.Thread = field(init=False)

    def start(self) -> None:
        """Start it. Call this in the main thread: the kernel ends a child when the *thread* that started it ends."""
        self.log.clear()
        self.models.clear()
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip():
                parsed = LogLine.parse(line.rstrip("\n"))
                self.log.append(parsed)
                if parsed.of_loading is not None:
                    self.models.add(parsed.of_loading)
                self.on_line(self.role, parsed)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, which is a crash unless it was told to."""
        return self.process.poll() is not None

    def refusal(self) -> str | None:
        """Return the reason that it logged for not starting, if it did."""
        self._reader.join(1.0)
        reasons = [line.reason for line in self.log if line.reason is not None]
        return reasons[-1] if reasons else None

    def failure_reason(self) -> str:
        """Return why it ended, as far as its log tells."""
        self._reader.join(1.0)
        errors = [line.plain for line in self.log if line.level in ("error", "critical")]
        return errors[-1] if errors else f"it ended with status {self.process.returncode} and said nothing"

    @property
    def exit_code(self) -> ExitCode:
        """The kind of its failure, once it has ended."""
        code = self.process.returncode
        return ExitCode(code) if code in (ExitCode.USAGE, ExitCode.UNAVAILABLE) else ExitCode.FAILED

    def kill(self) -> None:
        """Kill it and wait for its end."""
        self.process.kill()
        self.process.wait()


class EmbeddedService:
    """The service, from :meth:`start` to :meth:`close`."""

    def __init__(
        self,
        settings: EmbeddedSettings,
        stop: StopRequest,
        on_line: Callable[[str, LogLine], None],
    ) -> None:
        """on_line: called, in threads of their own, with a process's role and each line that it logs."""
        self._settings = settings
        self._stop = stop
        self._on_line = on_line
        self._children: list[Child] = []
        self.warnings: list[str] = []  # of settings that are not used, once it has started
        self._data = DataDirectory(settings.data)
        self._socket_folder: tempfile.TemporaryDirectory[str] | None = None
        self._port = settings.port
        self._models = 1  # that its worker serves

    @property
    def url(self) -> str:
        """The URL of the API."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._settings.host, self._settings.host)
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self._port}"

    @property
    def key_variable(self) -> str | None:
        """The variable that holds the key for this process's own calls of the API; None: they have no key."""
        names = [BOOTSTRAP_KEY_VARIABLE, *([] if _is_loopback(self._settings.host) else [KEY_VARIABLE])]
        return next((name for name in names if os.environ.get(name)), None)

    @property
    def api_key(self) -> str:
        """The key of :attr:`key_variable`, or an empty string."""
        return "" if self.key_variable is None else os.environ[self.key_variable]

    def start(self) -> None:
        """Migrate the database and start the processes. Raises CommandError."""
        require_server()
        self._data.lock()
        try:
            self._port = _free_port(self._settings.host, self._settings.port)
            variables = environment(**self._variables())
            if self._settings.model is None:
                variables.pop(MODEL_VARIABLE, None)
            warnings = _prepare(variables)
            if self._settings.models is not None:
                served = _apply(self._settings.models, variables)
                variables["SCORELINE_WORKER_MODELS"] = ",".join(served)
                self._models = len(served)
        except CommandError:
            self._data.remove_if_new()
            raise
        self._data.add_to(variables)
        self.warnings = [*_unused_variables(), *warnings]
        for role, module in ROLES.items():
            command = python_command("-m", "scoreline.child", str(os.getpid()), module)
            self._children.append(Child(role, command, variables, self._on_line))
            self._children[-1].start()

    def wait_until_ready(self) -> bool:
        """Wait until API and worker are ready. Returns False if told to stop before that. Raises CommandError."""
        with httpx2.Client(base_url=self.url, timeout=2.0, trust_env=False) as client:
            while not self._stop:
                for child in self._children:
                    if child.has_ended:
                        raise StartError(child)
                # The worker's log counts, not the database, where a worker that was just killed still looks alive.
                worker = next(child for child in self._children if child.role == "worker")
                if len(worker.models) >= self._models and _is_ready(client):
                    return True
                time.sleep(POLL_SECONDS)
        return False

    def run(self) -> None:
        """Restart processes that crash, until told to stop. Raises CommandError if one keeps crashing."""
        while not self._stop:
            self.restart_ended()
            time.sleep(POLL_SECONDS)

    def restart_ended(self) -> None:
        """Restart the processes that have crashed. Raises CommandError if one keeps crashing."""
        for child in self._children:
            if child.has_ended:
                self._restart(child)

    def _restart(self, child: Child) -> None:
        reason = child.failure_reason()
        quick = time.monotonic() - child.started_at < QUICK_CRASH_SECONDS
        child.quick_crashes = child.quick_crashes + 1 if quick else 0
        if child.quick_crashes >= QUICK_CRASHES:
            raise CommandError(f"the {child.role} keeps crashing: {reason}")
        pause = 2.0 ** max(0, child.quick_crashes - 1)
        self._on_line(child.role, LogLine(f"the {child.role} ended ({reason}); it is started again in {pause:g} s"))
        resume_at = time.monotonic() + pause
        while time.monotonic() < resume_at and not self._stop:
            time.sleep(POLL_SECONDS)
        if not self._stop:
            child.start()

    def _variables(self) -> dict[str, str]:
        settings = self._settings
        data = settings.data.resolve()
        bell = data / "bell"
        if len(os.fsencode(bell)) > LONGEST_SOCKET_PATH:
            self._socket_folder = tempfile.TemporaryDirectory(prefix="scoreline-")
            bell = Path(self._socket_folder.name) / "bell"
        variables = {
            DATABASE_VARIABLE: embedded_database(data),
            "SCORELINE_BELL_SOCKET": str(bell),
            "SCORELINE_HOST": settings.host,
            "SCORELINE_PORT": str(self._port),
            "SCORELINE_API_PROCESSES": settings.processes,
            "SCORELINE_LEASE_SECONDS": os.environ.get("SCORELINE_LEASE_SECONDS", str(LEASE_SECONDS)),
            "PYTHONUNBUFFERED": "1",
        }
        if settings.model is not None:
            variables[MODEL_VARIABLE] = _absolute_if_local(settings.model)
        if settings.model_name is not None:
            variables["SCORELINE_MODEL_NAME"] = settings.model_name
        return variables

    def close(self) -> None:
        """Stop the processes. Kill them if they take too long, or if this process is told to stop again."""
        running = [child for child in self._children if not child.has_ended]
        # The worker goes on until the API has ended, whose calls wait for their scores.
        waiting = [child for child in running if child.role == "worker"]
        for child in running:
            if child not in waiting:
                child.process.send_signal(signal.SIGTERM)
        stops = self._stop.count
        # Once anything runs, the values have been checked.
        more = sum(float(os.environ.get(name) or 0) for name in STOP_VARIABLES if running)
        deadline = time.monotonic() + STOP_SECONDS + more
        while any(not child.has_ended for child in running):
            if waiting and all(child.has_ended for child in running if child.role == "api"):
                waiting.pop().process.send_signal(signal.SIGTERM)
                deadline = max(deadline, time.monotonic() + STOP_SECONDS)
            if time.monotonic() > deadline or self._stop.count > stops:
                for child in running:
                    child.kill()
            time.sleep(POLL_SECONDS / 5)
        if self._socket_folder is not None:
            self._socket_folder.cleanup()
        self._data.release()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _absolute_if_local(model: str) -> str:
    """Return the absolute path of an existing folder, and anything else unchanged."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def _free_port(host: str, port: int) -> int:
    """Return ``port``, or for 0 any free one. Raises CommandError if it can't be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise CommandError(
            f"{host} port {port} can't be used: {error.strerror or error}; name another one with --port"
        ) from error


def _unused_variables() -> list[str]:
    """Return a warning for each variable that is set and that the embedded service does not use."""
    instead = {
        DATABASE_VARIABLE: "jobs are kept in the directory that --data names",
        "SCORELINE_REDIS_URL": "no Redis is needed",
        "SCORELINE_BELL_SOCKET": "the socket is in the directory that --data names",
    }
    return [
        f"{name} is set and not used by `scoreline up`: {why}" for name, why in instead.items() if name in os.environ
    ]


def _prepare(variables: dict[str, str]) -> list[str]:
    """Look at the settings, and bring the database up to date. Returns warnings. Raises CommandError."""
    done = _run("operations.prepare", variables, failed="the database could not be brought up to date")
    return [line.removeprefix("warning: ") for line in _lines(done)]


def _apply(models: Path, variables: dict[str, str]) -> list[str]:
    """Make a file the catalogue of the database. Returns the names of its models. Raises CommandError."""
    failed = f"the models of {models} can't be served"
    done = _run("operations.models", variables, "apply", str(models), "--json", failed=failed)
    return [model["name"] for model in json.loads(done.stdout)]


def _run(module: str, variables: dict[str, str], *arguments: str, failed: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the server to its end. Raises CommandError."""
    done = subprocess.run(
        python_command("-m", module, *arguments),
        env=variables,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,  # it takes about a second, and Ctrl-C must not interrupt it
    )
    lines = _lines(done)
    if done.returncode in (ExitCode.USAGE, ExitCode.UNAVAILABLE):
        raise CommandError(lines[-1], ExitCode(done.returncode))
    if done.returncode:
        raise CommandError(f"{failed}: {lines[-1] if lines else 'no reason given'}")
    return done


def _lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("scoreline: ") for line in done.stderr.splitlines()]


def _is_ready(client: httpx2.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx2.TransportError:
        return False
