"""Private PostgreSQL and Redis servers for a test run: temporary folders, free ports, gone when the run is gone."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import redis
from psycopg import sql

START_SECONDS = 30.0
STANDARD_PORTS = {5432, 6379}
LOOPBACK = "127.0.0.1"
FOR_TESTS = {
    "fsync": "off",  # a test survives the death of processes, not of the machine
    "max_wal_size": "128MB",  # a test run often keeps these files in memory
    "deadlock_timeout": "200ms",
    "log_lock_waits": "on",
}
"""Options of PostgreSQL that suit tests and nothing else."""
_DEBIAN = Path(__file__).parents[1] / ".debian" / "usr"
_PR_SET_PDEATHSIG = 1


class MissingBinaryError(Exception):
    """A server is not installed here."""


def find_binary(name: str) -> str:
    """The path of a server's program: on PATH, where `make` unpacks packages, or where Debian keeps PostgreSQL's.

    Raises MissingBinaryError.
    """
    found = shutil.which(name) or shutil.which(name, path=f"{_DEBIAN}/bin:{_DEBIAN}/sbin")
    if found:
        return found
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    if versions:
        return str(versions[-1])
    raise MissingBinaryError(f"{name} is not installed")


def free_port() -> int:
    """A TCP port nobody listens on, and never a standard one."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in STANDARD_PORTS:
            return port


def wait_until(condition: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
    """Return once the condition holds. Raises TimeoutError, which says what did not happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.02)


def die_with_parent(signal_number: int) -> Callable[[], None] | None:
    """For ``preexec_fn``: have the kernel signal the child when this process dies, however it dies (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork
    return lambda: prctl(_PR_SET_PDEATHSIG, signal_number)


def stat_of(process_id: int) -> list[str]:
    """What the kernel tells of a process behind its name, beginning with its state and the id of its parent."""
    # The name is in brackets, and may contain anything.
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()


def _is_running(process_id: int) -> bool:
    try:
        return stat_of(process_id)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _family(process_id: int) -> list[int]:
    """A process and its children."""
    children = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(stat_of(int(path.name))[1]) == process_id:
                children.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [process_id, *children]


@contextmanager
def _frozen(process: subprocess.Popen[bytes] | None) -> Iterator[None]:
    """Freeze a server with its children: no connection is closed, and none is answered."""
    assert process is not None
    family = [process.pid]

    def is_still(process_id: int) -> bool:
        try:
            return stat_of(process_id)[0] in "TZ"
        except (FileNotFoundError, ProcessLookupError):  # a child that was just ending
            return True

    def send(number: signal.Signals) -> None:
        for process_id in family:
            with suppress(ProcessLookupError):
                os.kill(process_id, number)

    try:
        send(signal.SIGSTOP)  # to the server first, so that it gets no more children
        family = _family(process.pid)
        send(signal.SIGSTOP)
        wait_until(lambda: all(map(is_still, family)), "all of the server's processes are frozen")
        yield
    finally:
        send(signal.SIGCONT)


class PostgresServer:
    """A PostgreSQL cluster of this test run's own, on TCP and on a socket in its folder.

    options: settings of the server, instead of those that suit tests.
    """

    def __init__(self, address: str = LOOPBACK, options: Mapping[str, str] = FOR_TESTS) -> None:
        self.address = address
        self._options = options
        self._postgres = find_binary("postgres")
        initdb = find_binary("initdb")
        # PostgreSQL refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="scoreline-postgres-"))
        if self._user:
            shutil.chown(self._folder, self._user)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        self._kept: psycopg.Connection[tuple[object, ...]] | None = None
        self._kept_of: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        subprocess.run(
            [initdb, "-D", self._data, "-U", "scoreline", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C.UTF-8"],
            check=True,
            user=self._user,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )
        if address != LOOPBACK:
            with Path(self._data, "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")
        self.start()

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    @property
    def process_id(self) -> int:
        """The id of its first process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str) -> str:
        """The SQLAlchemy URL of one of its databases."""
        return f"postgresql+psycopg://scoreline@{self.address}:{self.port}/{database}"

    def create_database(self, template: str | None = None, name: str | None = None) -> str:
        """Make a database, as a copy of another where one is named. Returns its name, by default one of its own."""
        name = name or f"test_{next(self._names)}"
        # Copying files takes less time than writing all pages to the log.
        copy = sql.SQL(" TEMPLATE {} STRATEGY FILE_COPY")
        source = copy.format(sql.Identifier(template)) if template else sql.SQL("")
        self._order(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + source)
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        self._order(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _order(self, statement: sql.Composed) -> None:
        """Execute a statement on a connection that is kept, since opening one takes about as long as the statement."""
        if self._kept is None or self._kept_of is not self._process:  # the server was started anew
            self._kept, self._kept_of = self._administer(), self._process
        self._kept.execute(statement)

    def _administer(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host=self.address, port=self.port, user="scoreline", dbname="postgres", autocommit=True, connect_timeout=5
        )

    def start(self) -> None:
        """Start the server on its port; returns once it answers."""
        log = (self._folder / "log").open("ab")
        options = {
            "listen_addresses": self.address,
            "port": str(self.port),
            "unix_socket_directories": str(self._folder),
            "max_connections": "200",
            **self._options,
        }
        self._process = subprocess.Popen(
            [self._postgres, "-D", self._data, *(f"-c{name}={value}" for name, value in options.items())],
            user=self._user,
            cwd=self._folder,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(signal.SIGQUIT),
        )
        log.close()
        wait_until(self._answers, f"PostgreSQL answers on port {self.port}")

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError("PostgreSQL did not start:\n" + self.log())
        try:
            self._administer().close()
        except psycopg.OperationalError:
            return False
        return True

    def log(self) -> str:
        """What the server logged so far."""
        return (self._folder / "log").read_text(errors="replace")

    def stop(self) -> None:
        """Stop it at once, as a crash would: clients are cut off, what was committed is there after a start."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(START_SECONDS)
        self._process = None

    def kill(self) -> None:
        """Kill all of its processes (SIGKILL), and wait until they are gone."""
        assert self._process is not None
        family = _family(self._process.pid)
        for process_id in family:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        self._process.wait(START_SECONDS)
        self._process = None
        # The next server refuses to start while one of them holds shared memory.
        wait_until(lambda: not any(_is_running(process_id) for process_id in family), "PostgreSQL's processes are gone")

    def restart(self) -> None:
        """Stop and start again, on the same port with the same data."""
        self.stop()
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Have it silent inside this block: its connections stay open, and nothing is answered."""
        with _frozen(self._process):
            yield

    @contextmanager
    def only_reading(self) -> Iterator[None]:
        """Have it refuse to write inside this block, in sessions that are open as well, as a standby does."""

        def tell(value: str) -> None:
            self._order(sql.SQL("ALTER SYSTEM SET default_transaction_read_only = {}").format(sql.SQL(value)))
            self._order(sql.SQL("SELECT pg_reload_conf()").format())

        tell("on")
        try:
            yield
        finally:
            tell("DEFAULT")

    def url_of_plain_user(self, database: str) -> str:
        """Make a user who may use the tables of a database, and is no superuser. Returns the URL for this user."""
        with psycopg.connect(self.url(database).replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(f"user_{database}")))
            for kind in ("TABLES", "SEQUENCES"):
                grant = sql.SQL(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {{}}")
                connection.execute(grant.format(sql.Identifier(f"user_{database}")))
        return self.url(database).replace("//scoreline@", f"//user_{database}@")

    @contextmanager
    def without_right(self, right: str, table: str, database: str) -> Iterator[None]:
        """Take a right on a table from the plain user of a database inside this block."""
        names = {"table": sql.Identifier(table), "user": sql.Identifier(f"user_{database}")}
        with psycopg.connect(self.url(database).replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(sql.SQL(f"REVOKE {right} ON {{table}} FROM {{user}}").format(**names))
            try:
                yield
            finally:
                connection.execute(sql.SQL(f"GRANT {right} ON {{table}} TO {{user}}").format(**names))

    def close(self) -> None:
        """Stop it for good and remove its files."""
        if self._kept is not None:
            self._kept.close()
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class RedisServer:
    """A Redis of this test run's own. It keeps nothing on disk: stopped is forgotten."""

    def __init__(self, address: str = LOOPBACK) -> None:
        self.address = address
        self._binary = find_binary("redis-server")
        self._folder = Path(tempfile.mkdtemp(prefix="scoreline-redis-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        self.start()

    @property
    def process_id(self) -> int:
        """The id of its first process, while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """Its URL, database 0."""
        return f"redis://{self.address}:{self.port}/0"

    def start(self) -> None:
        """Start the server on its port; returns once it answers."""
        self._process = subprocess.Popen(
            [
                *(self._binary, "--port", str(self.port), "--bind", self.address, "--protected-mode", "no"),
                *("--save", "", "--appendonly", "no", "--dir", str(self._folder)),
            ],
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        wait_until(self._answers, f"Redis answers on port {self.port}")

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1.0) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def flush(self) -> None:
        """Forget everything."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def stop(self) -> None:
        """Kill it: clients are cut off and what it held is lost."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(START_SECONDS)
        self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Have it silent inside this block: its connections stay open, and nothing is answered."""
        with _frozen(self._process):
            yield

    def close(self) -> None:
        """Stop it for good and remove its files."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
