"""Everything in one place: the API, a worker and the delivery of webhooks as processes of this one, on SQLite and a
local socket.

The processes live exactly as long as this one does, however it ends. They have sessions of their own, so that Ctrl-C in
the terminal reaches this process alone, which then stops them in good order.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from scoreline.client import KEY_VARIABLE
from scoreline.log_lines import LogLine
from scoreline.server_process import CommandError, environment, python_command, require_rooms

ROLES = {"api": "api", "worker": "workers.engine_loop", "deliver": "workers.delivery"}
"""The processes of the service, and the modules that they run."""

BOOTSTRAP_VARIABLE = "SCORELINE_BOOTSTRAP_KEY"
LOOK_SECONDS = 0.05
STOP_SECONDS = 20.0
"""How long a process may take to stop before it is killed: more than the API grants to requests in progress, and than
an attempt to deliver a webhook takes, unless that was set to more."""

QUICK_CRASH_SECONDS = 30.0
QUICK_CRASHES = 3
"""A process that crashes so often, each time within so many seconds of its start, is given up."""

LEASE_SECONDS = 20.0
"""Shorter than in production: there is no network, and whoever was killed wants to go on soon."""

LONGEST_SOCKET_PATH = 100
KEPT_LINES = 30


class EmbeddedError(CommandError):
    """The service can't be started, or can't go on."""


class StartError(EmbeddedError):
    """A process ended before the service was ready. said: its log, where the message does not tell it all."""

    def __init__(self, child: Child) -> None:
        refusal = child.refusal()
        super().__init__(f"the {child.role} did not start: {refusal or child.last_words()}")
        self.role = child.role
        self.said = [] if refusal else list(child.said)


@dataclass(slots=True)
class StopRequest:
    """How often this process was told to stop. A signal handler may only count: anything else could block on itself."""

    count: int = 0

    def __bool__(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """What to serve and where.

    model: a folder, or the id of a model on the hub; port 0: a free one; model_name None: the folder's name or the id.
    """

    model: str
    data: Path
    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str | None = None


@dataclass(slots=True, eq=False)
class Child:
    """A process of the service, and the last it said. is_ready: it said that it is."""

    role: str
    command: list[str]
    environment: dict[str, str]
    on_line: Callable[[str, LogLine], None]
    process: subprocess.Popen[str] = field(init=False)
    started_at: float = field(init=False)
    said: deque[LogLine] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    quick_crashes: int = 0
    is_ready: bool = False
    _pump: threading.Thread = field(init=False)

    def start(self) -> None:
        """Start it. To be called in the main thread: the kernel ends a child when the *thread* that started it ends."""
        self.said.clear()
        self.is_ready = False
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
        self._pump = threading.Thread(target=self._read, daemon=True)
        self._pump.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip():
                parsed = LogLine.parse(line.rstrip("\n"))
                self.said.append(parsed)
                self.is_ready |= parsed.is_readiness
                self.on_line(self.role, parsed)

    @property
    def crashed(self) -> bool:
        """Whether it has ended, which no process here does by itself."""
        return self.process.poll() is not None

    def refusal(self) -> str | None:
        """The reason it gave for not starting, if it gave one."""
        self._pump.join(1.0)
        reasons = [line.reason for line in self.said if line.reason is not None]
        return reasons[-1] if reasons else None

    def last_words(self) -> str:
        """Why it ended, as far as it said so."""
        self._pump.join(1.0)
        errors = [line.plain for line in self.said if line.level in ("error", "critical")]
        return errors[-1] if errors else f"it ended with status {self.process.returncode} and said nothing"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class EmbeddedService:
    """The service, from :meth:`start` to :meth:`close`.

    on_line: called, in threads, with each line that a process logs.
    """

    def __init__(
        self,
        settings: EmbeddedSettings,
        stop: StopRequest,
        on_line: Callable[[str, LogLine], None],
        roles: Mapping[str, str] = ROLES,
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._on_line = on_line
        self._roles = roles
        self._children: list[Child] = []
        self._lock: int | None = None
        self._socket_folder: tempfile.TemporaryDirectory[str] | None = None
        self._port = settings.port

    @property
    def url(self) -> str:
        """Where the API answers."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._settings.host, self._settings.host)
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self._port}"

    @property
    def key_variable(self) -> str | None:
        """The environment variable with the key that this process calls the API with. None: it calls without, which
        will do on a loopback address.
        """
        names = [BOOTSTRAP_VARIABLE, *([] if _is_loopback(self._settings.host) else [KEY_VARIABLE])]
        return next((name for name in names if os.environ.get(name)), None)

    @property
    def api_key(self) -> str:
        """That key; empty: none."""
        return "" if self.key_variable is None else os.environ[self.key_variable]

    def start(self) -> None:
        """Migrate, and start the processes. Raises EmbeddedError, ServerMissingError."""
        require_rooms()
        self._lock = _lock_data(self._settings.data)
        self._port = _free_port(self._settings.host, self._settings.port)
        variables = environment(**self._variables())
        _migrate(variables)
        for role, module in self._roles.items():
            command = python_command("-m", "scoreline.child", str(os.getpid()), module)
            self._children.append(Child(role, command, variables, self._on_line))
            self._children[-1].start()

    def wait_until_ready(self) -> bool:
        """Return once the API answers and the worker is ready; False if told to stop before. Raises EmbeddedError."""
        with httpx2.Client(base_url=self.url, timeout=2.0, trust_env=False) as client:
            while not self._stop:
                for child in self._children:
                    if child.crashed:
                        raise StartError(child)
                # Its own word counts, not the store's: there, a worker that was killed a moment ago still looks live.
                if self._child("worker").is_ready and _is_ready(client):
                    return True
                time.sleep(LOOK_SECONDS)
        return False

    def run(self) -> None:
        """Keep the processes running until told to stop. Raises EmbeddedError if one keeps crashing."""
        while not self._stop:
            for child in self._children:
                if child.crashed:
                    self._restart(child)
            time.sleep(LOOK_SECONDS)

    def _child(self, role: str) -> Child:
        return next(child for child in self._children if child.role == role)

    def _restart(self, child: Child) -> None:
        reason = child.last_words()
        quick = time.monotonic() - child.started_at < QUICK_CRASH_SECONDS
        child.quick_crashes = child.quick_crashes + 1 if quick else 0
        if child.quick_crashes >= QUICK_CRASHES:
            raise EmbeddedError(f"the {child.role} keeps crashing: {reason}")
        pause = 2.0 ** max(0, child.quick_crashes - 1)
        self._on_line(child.role, LogLine(f"the {child.role} ended ({reason}); it is started again in {pause:g} s"))
        resume_at = time.monotonic() + pause
        while time.monotonic() < resume_at and not self._stop:
            time.sleep(LOOK_SECONDS)
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
            "SCORELINE_DATABASE_URL": f"sqlite:///{data / 'scoreline.db'}",
            "SCORELINE_BELL_SOCKET": str(bell),
            "SCORELINE_MODEL": _absolute_if_local(settings.model),
            "SCORELINE_HOST": settings.host,
            "SCORELINE_PORT": str(self._port),
            "SCORELINE_LEASE_SECONDS": os.environ.get("SCORELINE_LEASE_SECONDS", str(LEASE_SECONDS)),
            "PYTHONUNBUFFERED": "1",
        }
        if settings.model_name is not None:
            variables["SCORELINE_MODEL_NAME"] = settings.model_name
        return variables

    def close(self) -> None:
        """Stop what runs: asked first, killed if it takes too long, or if this process is told to stop once more."""
        running = [child for child in self._children if not child.crashed]
        for child in running:
            child.process.send_signal(signal.SIGTERM)
        told = self._stop.count
        deadline = time.monotonic() + STOP_SECONDS
        while any(not child.crashed for child in running):
            if time.monotonic() > deadline or self._stop.count > told:
                for child in running:
                    child.kill()
            time.sleep(LOOK_SECONDS / 5)
        if self._socket_folder is not None:
            self._socket_folder.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _absolute_if_local(model: str) -> str:
    """A folder by its absolute path; anything else as it is: the processes say what is wrong with it, if anything."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def _lock_data(data: Path) -> int:
    """Take a data directory for this process: a descriptor that holds it while it is open."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EmbeddedError(f"the data directory {data} can't be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(lock, 20).decode()
        os.close(lock)
        raise EmbeddedError(
            f"the data directory {data} is in use by another `scoreline up` (process {owner}); "
            "stop that one, or name another directory with --data"
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock


def _free_port(host: str, port: int) -> int:
    """``port``, or any free one for 0. Raises EmbeddedError if it can't be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise EmbeddedError(
            f"{host} port {port} can't be used: {error.strerror or error}; name another one with --port"
        ) from error


def _migrate(variables: dict[str, str]) -> None:
    done = subprocess.run(
        python_command("-m", "jobs.store.migration"),
        env=variables,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,  # it is done in a second, and Ctrl-C must not cut it short
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise EmbeddedError(f"the database could not be brought up to date: {lines[-1]}")


def _is_ready(client: httpx2.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx2.TransportError:
        return False
