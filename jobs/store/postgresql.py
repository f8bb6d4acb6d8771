"""The engine for PostgreSQL, and noticing that PostgreSQL has fallen silent.

A server that is frozen, or that a network no longer reaches, closes no connection. The kernel finds out only that the
network is lost, not that the server is frozen. So every statement has a time within which a byte of an answer must
come. After that its connection is closed, and this is an outage like any other.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.abc import PQGen
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from settings.errors.mistakes import setting_error
from settings.store import StoreSettings

IDLE_SECONDS = 1.0  # a connection that was unused for longer is tested before its use: the server may have restarted

LEAST_CONNECT_SECONDS, MOST_CONNECT_SECONDS = 2, 4
"""Bounds of the time for making a connection: the driver allows no less, and more is not needed for three attempts."""

QUICK_SECONDS = 1.0
"""A connection that is refused within this time is refused by a living server, or by the kernel of a living host."""

SERVER_SHARE = 0.75
"""PostgreSQL itself ends a statement after this share of the time, so that a slow statement does not look silent."""

LOST_NETWORK_SECONDS = 15
"""After so much silence on the network each side gives a connection up. For PostgreSQL: and frees its locks."""

OUTAGES = (
    "08",  # the connection broke off
    "25006",  # PostgreSQL only reads: a standby, a primary that was demoted, a managed server whose disk is full
    "28",  # the user may no longer log in
    "40",  # the transaction was rolled back, and may succeed when it is repeated
    "42501",  # a right was revoked
    "53",  # there is no disk or memory left, or no room for another connection
    "57",  # an operator, a restart or a time limit ended the session or the statement
    "58",  # the operating system of the server reports an error
)
"""The SQLSTATEs, and classes of them, that are outages: what is not the fault of a statement, and may pass by itself.

psycopg's own classes of errors don't say so: a right that was revoked is a ProgrammingError, as wrong SQL is.
"""

RENEWAL_SECONDS = 1.0
"""How old a connection is at least that is replaced because PostgreSQL only reads. A new one may lead to a server that
writes, and knows the present settings of its database. So the outage ends without a restart of this process."""

_PROBES, _PROBE_SECONDS = 2, 5  # how often the kernel asks whether the other side is there, after as long a silence
_LOOK_SECONDS = 0.1  # how often a waiting thread looks at the clock

Answer = TypeVar("Answer")


class SilenceError(psycopg.OperationalError):
    """PostgreSQL did not answer in time, and the connection to it is closed. A COMMIT may have been carried out."""


def is_outage(error: psycopg.Error) -> bool:
    """Return whether an error of PostgreSQL or of the driver is an outage, and no mistake in what was asked."""
    if error.sqlstate is None:  # no connection could be made, or it was lost
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(OUTAGES)


def condensed(sql: str) -> str:
    """Return a statement without comments, which stand in lines of their own, and without what says nothing.

    The driver remembers how to send a text of at most 4,096 characters. A longer one it takes apart anew each time.
    """
    lines = (line.strip() for line in sql.splitlines())
    text = " ".join(line for line in lines if line and not line.startswith("--"))
    return _NAMES.sub(r"\1", _SPACES.sub("", text))


_SPACES = re.compile(r"(?<=[(,=]) | (?=[),=])")
"""The spaces that say nothing. No string in the statements holds a bracket, a comma or a sign of equality."""

_NAMES = re.compile(r"(?<=\.)(\w+) AS \1\b")
"""The names of columns that they have anyhow."""


def open_engine(url: URL, settings: StoreSettings) -> Engine:
    """Return an engine whose statements and attempts to connect all end after a bounded time."""
    attention = _Attention(settings)
    server_settings = {
        # For statements without a transaction; the driver names it for the others.
        "default_transaction_isolation": r"read\ committed",
        # This frees the locks of a worker that is frozen in a transaction.
        "idle_in_transaction_session_timeout": "60s",
        # PostgreSQL overestimates some of these small queries, and would compile them for longer than they take.
        "jit": "off",
        # A transaction that is to wait for locks for a shorter time than for a statement says so itself.
        "lock_timeout": "0",
        "statement_timeout": server_timeout(settings.statement_seconds),
        # These free the locks of a client whose network is lost.
        "tcp_user_timeout": f"{LOST_NETWORK_SECONDS}s",
        "tcp_keepalives_idle": str(_PROBE_SECONDS),
        "tcp_keepalives_interval": str(_PROBE_SECONDS),
        "tcp_keepalives_count": str(_PROBES),
    }
    _check_options(url)
    asked = url.query.get("options", ())
    # Of two values of one setting, PostgreSQL takes the last.
    options = [asked] if isinstance(asked, str) else [*asked]
    options += [f"-c {name}={value}" for name, value in server_settings.items()]
    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_size=5,
        pool_use_lifo=True,  # the connection that was used last is warm: its statements are prepared, its memory cached
        max_overflow=15,
        pool_timeout=settings.statement_seconds,
        hide_parameters=True,
        connect_args={
            "connect_timeout": attention.connect_seconds,
            "tcp_user_timeout": 1000 * LOST_NETWORK_SECONDS,
            "keepalives_idle": _PROBE_SECONDS,
            "keepalives_interval": _PROBE_SECONDS,
            "keepalives_count": _PROBES,
            "options": " ".join(options),
            **(
                {} if "application_name" in url.query or "PGAPPNAME" in os.environ else {"application_name": _program()}
            ),
        },
    )

    def connect(_dialect: Any, _record: Any, arguments: list[Any], named: dict[str, Any]) -> WatchedConnection:
        return attention.connect(*arguments, **named)

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "checkin", _after_use)
    event.listen(engine, "checkout", partial(_replace_if_gone, engine, attention))
    return engine


def _program() -> str:
    """Return the name under which PostgreSQL lists this process, such as ``scoreline workers.engine_loop``."""
    module = getattr(sys.modules.get("__main__"), "__spec__", None)
    return f"scoreline {module.name.removesuffix('.__main__')}" if module else "scoreline"


def _check_options(url: URL) -> None:
    """Raise SettingError if the query of the URL has an option that the driver does not know."""
    try:
        conninfo.make_conninfo("", **{name: str(value) for name, value in url.query.items()})
    except psycopg.ProgrammingError as error:
        what = f"it has an {str(error).strip()}; correct this option of libpq, or remove it"
        raise setting_error("database_url", url.render_as_string(hide_password=True), what) from None


def server_timeout(seconds: float) -> str:
    """Return PostgreSQL's own time limit for a statement whose answer is waited for so long, 24 days at the most."""
    return f"{min(2**31 - 1, max(1, round(1000 * SERVER_SHARE * seconds)))}ms"


class WatchedConnection(psycopg.Connection[Any]):
    """A connection that is closed when PostgreSQL is silent for too long."""

    _attention: _Attention
    _silence_seconds: float
    opened_at: float  # on the monotonic clock

    def listen_to(self, attention: _Attention) -> None:
        """Begin to measure silences."""
        self._attention = attention
        self.opened_at = time.monotonic()
        self.allow_silence(attention.statement_seconds)

    def allow_silence(self, seconds: float | None = None) -> None:
        """Set how long PostgreSQL may be silent while it carries out a statement. None: as long as by default.

        While a statement may take longer than by default, a new connection shows now and then that PostgreSQL is there.
        """
        self._silence_seconds = self._attention.statement_seconds if seconds is None else seconds

    def begin(self, settings: Iterable[str]) -> None:
        """Begin a transaction with these settings of its own. All of it takes one round trip."""
        level, read_only = self.isolation_level, self.read_only
        wanted = [] if level is None else [f"ISOLATION LEVEL {level.name.replace('_', ' ')}"]
        wanted += ["READ ONLY"] if read_only else []
        self.autocommit = True  # otherwise the driver sends a BEGIN by itself before anything else
        self.execute("; ".join([" ".join(["BEGIN", *wanted]), *settings]), prepare=False)

    def wait(self, gen: PQGen[Answer], interval: float = _LOOK_SECONDS, timeout: float | None = None) -> Answer:
        """Wait for an answer. psycopg calls this for everything it sends. Raises SilenceError."""
        try:
            return super().wait(self._watch(gen), min(interval, _LOOK_SECONDS), timeout)
        except psycopg.errors.ReadOnlySqlTransaction:
            self.only_reads()
            raise

    def only_reads(self) -> None:
        """Have this connection and all older ones replaced by the pool, unless it was made a moment ago."""
        if time.monotonic() - self.opened_at > RENEWAL_SECONDS:
            self._attention.replace_connections()

    def _watch(self, answer: PQGen[Answer]) -> PQGen[Answer]:
        """Pass on what the driver and the socket tell each other, and count the time in which the socket is silent."""
        heard_at: float | None = None  # None while the socket has kept nobody waiting
        alive_at = 0.0  # when PostgreSQL was last known to be there
        try:
            wanted = next(answer)
            while True:
                ready = yield wanted
                if ready:
                    heard_at = None
                else:
                    now = time.monotonic()
                    if heard_at is None:
                        heard_at = alive_at = now - _LOOK_SECONDS
                    if now - heard_at > self._silence_seconds:
                        raise self._give_up()
                    may_take_long = self._silence_seconds > self._attention.statement_seconds
                    if may_take_long and now - alive_at > self._attention.question_seconds:
                        if not self._attention.is_there():
                            raise self._give_up()
                        alive_at = time.monotonic()
                wanted = answer.send(ready)
        except StopIteration as done:
            result: Answer = done.value
            return result

    def _give_up(self) -> SilenceError:
        self._attention.noticed_silence()
        self.close()
        return SilenceError("PostgreSQL does not answer")


class _Attention:
    """What a process knows about the silence of PostgreSQL, and its attempts to connect. Safe to use from threads.

    While PostgreSQL is silent, one thread at a time tries to connect. All others fail at once, so that requests do not
    wait for each other's attempts.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.statement_seconds = settings.statement_seconds
        wanted = math.ceil(settings.statement_seconds)
        self.connect_seconds = min(MOST_CONNECT_SECONDS, max(LEAST_CONNECT_SECONDS, wanted))
        # After so much silence a new connection is tried, so that silence is noticed within the time of a statement.
        self.question_seconds = max(self.statement_seconds / 2, self.statement_seconds - self.connect_seconds)
        self._noticed_at = -math.inf
        self._silent = False  # whether the last thing that was sent, or tried, was not answered in time
        self._trying = threading.Lock()
        self._connect: partial[WatchedConnection] | None = None

    def connect(self, *arguments: Any, **named: Any) -> WatchedConnection:
        """Make a connection. Raises psycopg.OperationalError."""
        self._connect = partial(WatchedConnection.connect, *arguments, **named)
        connection = self._try(self._connect)
        connection.listen_to(self)
        return connection

    def _try(self, connect: partial[WatchedConnection]) -> WatchedConnection:
        alone = self._silent
        if alone and not self._trying.acquire(blocking=False):
            raise psycopg.OperationalError("PostgreSQL does not answer, and another thread is trying to reach it")
        started = time.monotonic()
        try:
            connection = connect()
        except psycopg.OperationalError:
            self._silent = time.monotonic() - started > QUICK_SECONDS
            raise
        else:
            self._silent = False
            return connection
        finally:
            if alone:
                self._trying.release()

    def is_there(self) -> bool:
        """Return whether PostgreSQL, or the kernel of its host, answers an attempt to connect."""
        assert self._connect is not None
        try:
            self._try(self._connect).close()
        except psycopg.OperationalError:
            return not self._silent
        return True

    def noticed_silence(self) -> None:
        """Let no connection that is open now be used again, and one thread at a time try to connect."""
        self.replace_connections()
        self._silent = True

    def replace_connections(self) -> None:
        """Let no connection that is open now be used again."""
        self._noticed_at = time.monotonic()

    def may_use(self, connection: WatchedConnection) -> bool:
        """Return whether the connection was made since all were to be replaced."""
        return connection.opened_at > self._noticed_at


def _after_use(connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    record.info["used_at"] = time.monotonic()
    if isinstance(connection, WatchedConnection):
        connection.allow_silence()
        if connection.autocommit and not connection.closed:  # see WatchedConnection.begin, Database.without_transaction
            connection.autocommit = False


def _replace_if_gone(
    engine: Engine,
    attention: _Attention,
    connection: Any,
    record: ConnectionPoolEntry,
    _checked_out: PoolProxiedConnection,
) -> None:
    """Raise InvalidatePoolError for a connection that should not be used. The pool replaces it and all older ones."""
    if not attention.may_use(connection):
        raise InvalidatePoolError("PostgreSQL was silent, or did not write")
    # Like the pool's own pre-ping, but that one tests the connection before every transaction.
    if time.monotonic() - record.info.get("used_at", math.inf) < IDLE_SECONDS:
        return
    connection.allow_silence(min(attention.statement_seconds, attention.connect_seconds))
    try:
        engine.dialect.do_ping(connection)
    except psycopg.Error as error:
        raise InvalidatePoolError(str(error)) from error
    connection.allow_silence()
