"""The systems whose calls are measured. Each is started with servers of its own, and ended with all its processes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from benchmarks.calls.celery_peer import REDIS_VARIABLE
from benchmarks.calls.load import ANSWER_SECONDS, LABELS, PATH, QUERY, body, texts
from benchmarks.calls.processor_time import cpu_seconds, family
from benchmarks.shapes import DEMONSTRATION
from benchmarks.timing import Measured, timed
from scoreline.server_process import environment, python_command
from tests.services import PostgresServer, RedisServer, die_with_parent, free_port

CORES = len(os.sched_getaffinity(0))
START_SECONDS, STOP_SECONDS = 180.0, 30.0
POLL_SECONDS = 0.1
ENGINE_REPEATS = 10
IDLE_SECONDS, IDLE_SHARE = 1.0, 0.15
"""A system has started when its processes together take less than this share of a core for so long."""

COMMAND = ("-c", "from scoreline.command import main; main()")
"""The command ``scoreline``."""


class StartError(Exception):
    """A system did not start. The message ends with what its processes have logged."""


@dataclass(frozen=True, slots=True)
class Running:
    """A system that answers."""

    url: str
    key: str  # for its calls; empty if it needs none
    scores: list[list[float]]  # of the first call, which is the same for all systems
    processes: Callable[[], Mapping[str, Iterable[int]]]  # at present, by role

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor time so far, by role."""
        return {role: cpu_seconds(found) for role, found in self.processes().items()}


@dataclass(slots=True)
class Parts:
    """The parts of a system that is being started. They end, the last one first, with the stack."""

    stack: ExitStack
    folder: Path
    roots: dict[str, int] = field(default_factory=dict)
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        """The URL of the system's API."""
        return f"http://127.0.0.1:{self.port}"

    def postgres(self) -> str:
        """Start PostgreSQL as it is configured by default, so that a commit is on the disk; return a database's URL."""
        server = self.stack.enter_context(closing(PostgresServer(options={})))
        self.roots["database"] = server.process_id
        return server.url(server.create_database())

    def redis(self) -> str:
        """Start Redis and return its URL."""
        server = self.stack.enter_context(closing(RedisServer()))
        self.roots["redis"] = server.process_id
        return server.url

    def process(self, role: str, *arguments: str, **variables: str) -> None:
        """Start a process of Python."""
        with self._log(role).open("wb") as log:
            process = subprocess.Popen(
                python_command(*arguments),
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others in order
                preexec_fn=die_with_parent(signal.SIGKILL),
            )
        self.roots[role] = process.pid
        self.stack.callback(_stop, process)

    def processes(self) -> dict[str, set[int]]:
        """Return the processes of each role."""
        return {role: family([process_id]) for role, process_id in self.roots.items()}

    def first_scores(self, key: str = "") -> list[list[float]]:
        """Return the answer to a call, once there is one and nothing is compiled any more. Raises StartError."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        deadline = time.monotonic() + START_SECONDS
        with httpx2.Client(base_url=self.url, headers=headers, timeout=ANSWER_SECONDS, trust_env=False) as client:
            while (scores := _scores(client)) is None:
                if time.monotonic() > deadline or any(map(_has_ended, self.roots.values())):
                    raise StartError("\n".join(["the system did not start", *map(self._log_of, self.roots)]))
                time.sleep(POLL_SECONDS)
        while time.monotonic() < deadline:
            before = cpu_seconds(family(self.roots.values()))
            time.sleep(IDLE_SECONDS)
            if cpu_seconds(family(self.roots.values())) - before < IDLE_SHARE * IDLE_SECONDS:
                return scores
        raise StartError("the system answers, but its processes do not become idle")

    def _log(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def _log_of(self, role: str) -> str:
        return f"--- {role}\n{self._log(role).read_text(errors='replace')[-2000:]}" if self._log(role).exists() else ""


def _scores(client: httpx2.Client) -> list[list[float]] | None:
    try:
        response = client.post(PATH, json=body(texts(0, 1)))
    except httpx2.TransportError:
        return None
    return response.json()["scores"] if response.is_success else None


def _has_ended(process_id: int) -> bool:
    # The process stays in the table until it has been waited for, which is done at the end.
    return os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and whatever is left of its group."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _parts() -> Iterator[Parts]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="scoreline-calls-"))
        yield Parts(stack, Path(folder))


@contextmanager
def ours_on_postgres(*api_arguments: str, instant: bool = False) -> Iterator[Running]:
    """``scoreline api`` and ``scoreline worker`` with PostgreSQL and Redis. Calls carry a key.

    instant: the worker has no engine.
    """
    with _parts() as parts:
        key = secrets.token_hex(32)
        variables = {
            "SCORELINE_DATABASE_URL": parts.postgres(),
            "SCORELINE_REDIS_URL": parts.redis(),
            "SCORELINE_MODEL": str(DEMONSTRATION),
            "SCORELINE_PORT": str(parts.port),
            "SCORELINE_BOOTSTRAP_KEY": key,
        }
        migrate = python_command(*COMMAND, "migrate")
        subprocess.run(migrate, env=environment(**variables), check=True, capture_output=True)
        without_engine = ("-m", "benchmarks.instant_worker", "--model", str(DEMONSTRATION))
        parts.process("worker", *(without_engine if instant else (*COMMAND, "worker")), **variables)
        parts.process("api", *COMMAND, "api", *api_arguments, **variables)
        yield Running(parts.url, key, parts.first_scores(key), parts.processes)


EMBEDDED_ROLES = {"api": "api", "worker": "workers.engine_loop"}
"""The modules that ``scoreline up`` runs in child processes."""


@contextmanager
def ours_embedded(*arguments: str) -> Iterator[Running]:
    """``scoreline up``: SQLite and a local socket. Calls need no key."""
    with _parts() as parts:
        where = ("--data", str(parts.folder / "data"), "--port", str(parts.port), "--model", str(DEMONSTRATION))
        parts.process("other", *COMMAND, "up", *where, *arguments)
        yield Running(parts.url, "", parts.first_scores(), lambda: _embedded_processes(parts.roots["other"]))


def _embedded_processes(up: int) -> dict[str, set[int]]:
    """Return the processes of each role. The role ``other`` is ``up`` itself and the process that sends webhooks."""
    everything = family([up])
    found: dict[str, set[int]] = {role: set() for role in EMBEDDED_ROLES}
    for process_id in everything:
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{process_id}/cmdline").read_text().split("\0")
            for role, module in EMBEDDED_ROLES.items():
                if "scoreline.child" in words and module in words:
                    found[role] |= family([process_id])
    return {"other": everything.difference(*found.values()), **found}


@contextmanager
def celery() -> Iterator[Running]:
    """FastAPI, one Celery worker, and Redis for tasks and results."""
    with _parts() as parts:
        variables = {REDIS_VARIABLE: parts.redis()}
        options = ["--pool", "solo", "--loglevel", "warning"]
        options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        parts.process("worker", "-m", "celery", "-A", "benchmarks.calls.celery_peer", "worker", *options, **variables)
        parts.process("api", *_uvicorn("benchmarks.calls.celery_peer:api", parts.port), **variables)
        yield Running(parts.url, "", parts.first_scores(), parts.processes)


@contextmanager
def bare() -> Iterator[Running]:
    """FastAPI with the engine in its own process."""
    with _parts() as parts:
        parts.process("api", *_uvicorn("benchmarks.calls.bare_peer:app", parts.port))
        yield Running(parts.url, "", parts.first_scores(), parts.processes)


def engine_alone(calls: Sequence[Sequence[str]]) -> Measured:
    """Measure the engine with the items of calls in one batch. This imports jax, in the process that measures."""
    from benchmarks.calls.scorer import Scorer

    scorer = Scorer()
    group = scorer.group(QUERY, calls, LABELS)

    def run() -> None:
        for _ in scorer.engine.score([group], lambda: None):
            pass

    return timed(run, ENGINE_REPEATS, sum(map(len, calls)), run)


def _uvicorn(app: str, port: int) -> tuple[str, ...]:
    return ("-m", "uvicorn", app, "--port", str(port), "--no-access-log", "--log-level", "warning")


def has_processes_option(command: str) -> bool:
    """Return whether a command of ``scoreline`` can start several processes of the API."""
    shown = subprocess.run(
        python_command(*COMMAND, command, "--help"), env=environment(COLUMNS="200"), capture_output=True, text=True
    )
    return "--processes" in shown.stdout
