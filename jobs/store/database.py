"""The connection to the store: SQLite or PostgreSQL, one transaction at a time, one clock."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Float,
    bindparam,
    create_engine,
    event,
    literal_column,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlalchemy.schema import Table
from sqlalchemy.sql.elements import ColumnClause

from jobs.store.revisions import known_revisions, schema_head, schema_revision
from settings.jobs import StoreSettings

BUSY_SECONDS = 15.0
"""How long a writer waits for SQLite's one write lock, or any thread for a connection of the pool."""

_LOCK_POLL_SECONDS = 0.01

IDLE_SECONDS = 1.0
"""A connection that was unused for longer is asked whether it is still there: the server may have gone meanwhile."""

_NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "(extract(epoch from clock_timestamp())::double precision)",
}


S = TypeVar("S", bound=Executable)


class StorageUnavailable(Exception):  # noqa: N818 (it names a state of the world, not a mistake)
    """The store can't be reached, or can't take part in a transaction now. Trying again later may help."""


@dataclass(eq=False)
class Database:
    """An engine, the policy of this store, and its clock.

    clock: where given, what is taken for now (Unix seconds) instead of the database's own clock.
    """

    engine: Engine
    settings: StoreSettings
    clock: Callable[[], float] | None = None
    # SQLite has one writer anyway. Within a process a lock hands the turn on at once, where SQLite would poll for it.
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _built: dict[Callable[[Database], Any], Any] = field(default_factory=dict)

    @classmethod
    def open(cls, settings: StoreSettings, clock: Callable[[], float] | None = None) -> Database:
        """Open a store. Connects at first use; creates the parent folder of a SQLite file."""
        url = make_url(settings.database_url)
        match url.get_backend_name():
            case "sqlite":
                if not url.database or url.database == ":memory:":
                    raise ValueError("the store must be a file: several processes share it")
                Path(url.database).parent.mkdir(parents=True, exist_ok=True)
                engine = create_engine(
                    url, connect_args={"timeout": BUSY_SECONDS}, pool_timeout=BUSY_SECONDS, hide_parameters=True
                )
                event.listen(engine, "connect", _configure_sqlite)
                event.listen(engine, "begin", _begin_sqlite)
            case "postgresql":
                # A worker that is cut off in mid-transaction must not hold its locks for the hours TCP may take. And
                # queries here are small, but some look dear to the planner, which would compile them for longer.
                engine = create_engine(
                    url,
                    isolation_level="READ COMMITTED",
                    pool_size=5,
                    max_overflow=15,
                    pool_timeout=BUSY_SECONDS,
                    hide_parameters=True,
                    connect_args={
                        "connect_timeout": 5,
                        "options": "-c idle_in_transaction_session_timeout=60s -c jit=off",
                    },
                )
                event.listen(engine, "checkin", _note_use)
                event.listen(engine, "checkout", partial(_replace_if_gone, engine))
            case other:
                raise ValueError(f"database_url must name sqlite or postgresql, not {other}")
        return cls(engine, settings, clock)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @property
    def now(self) -> ColumnElement[float]:
        """Unix seconds, as an SQL expression."""
        if self.clock is not None:
            return bindparam("now", unique=True, callable_=self.clock, type_=Float(53))
        now: ColumnClause[float] = literal_column(_NOW[self.engine.dialect.name], Float(53))
        return now

    def built(self, build: Callable[[Database], S]) -> S:
        """What ``build`` makes of this database, made once: to build a statement takes longer than to send it.

        For statements that every job needs, with their values as bound parameters. Those that need no database are
        constants.
        """
        if build not in self._built:
            self._built[build] = build(self)
        statement: S = self._built[build]
        return statement

    @contextmanager
    def read(self, *, in_order: bool = False, one_moment: bool = False) -> Iterator[Connection]:
        """A connection to read on. Every statement sees what was committed before it. in_order: see :meth:`write`.

        one_moment: every statement sees what was committed before the first of them, as it always is on SQLite.
        Raises StorageUnavailable.
        """
        if in_order or one_moment or self.is_sqlite:
            engine = self._of_one_moment if one_moment and not self.is_sqlite else self.engine
            with _naming_outages(), engine.connect() as connection, connection.begin():
                self._set_locally(connection, in_order=in_order)
                yield connection
        else:
            # At READ COMMITTED a transaction would add nothing but the way to the server to begin and to end it.
            with _naming_outages(), self._reading.connect() as connection:
                yield connection

    @contextmanager
    def write(self, *, durable: bool = True, in_order: bool = False) -> Iterator[Connection]:
        """One transaction that writes: committed at the end of the block, rolled back if it raises.

        durable: false lets PostgreSQL answer before the commit is on disk: a crash of the database may undo it whole.
        in_order: have PostgreSQL read the head of an index where it could sort a table instead. Told by its statistics
        that a query matches much of a backlog, its planner would rather sort, the longer the backlog the slower.
        Raises StorageUnavailable.
        """
        turn = self._turn if self.is_sqlite else nullcontext()
        with _naming_outages(), turn, self.engine.connect() as connection:
            connection.execution_options(writes=True)
            with connection.begin():
                self._set_locally(connection, durable=durable, in_order=in_order)
                yield connection

    def _set_locally(self, connection: Connection, *, durable: bool = True, in_order: bool = False) -> None:
        wanted = {"SET LOCAL synchronous_commit TO off": not durable, "SET LOCAL enable_sort TO off": in_order}
        settings = [setting for setting, is_wanted in wanted.items() if is_wanted]
        if settings and not self.is_sqlite:
            # In one way to the server with the BEGIN before them, which a claim on an idle service notices.
            driver: Any = connection.connection.driver_connection
            with driver.pipeline():
                for setting in settings:
                    driver.execute(setting)

    @cached_property
    def _reading(self) -> Engine:
        return self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @cached_property
    def _of_one_moment(self) -> Engine:
        # Who only reads gets no serialization failure at this level.
        return self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """An INSERT that knows ON CONFLICT."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    def check(self) -> None:
        """Raise StorageUnavailable unless the store answers and has the schema of this version, or of a later one.

        A migration leaves the version before it working: it comes first, and then process after process is replaced.
        """
        with self.read() as connection:
            found = schema_revision(connection)
        if found != self._head and (found is None or found in known_revisions()):
            raise StorageUnavailable(f"the database is at migration {found}, this version needs {self._head}")

    @cached_property
    def _head(self) -> str:
        return schema_head()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


@contextmanager
def _naming_outages() -> Iterator[None]:
    try:
        yield
    except (PoolTimeoutError, psycopg.OperationalError) as error:
        raise StorageUnavailable(str(error)) from error
    except DBAPIError as error:
        # Of whatever kind where the connection is gone: PostgreSQL ends the session of a client that was silent within
        # a transaction, one that was frozen for example, with an internal error.
        outage = error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
        # SQLite calls wrong SQL an operational error too: that is our fault, and no waiting mends it.
        if not outage or getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
            _leave_out_details(error)
            raise
        raise StorageUnavailable(str(error.orig)) from error


def _leave_out_details(error: DBAPIError) -> None:
    """What was sent is not to be logged with an error: PostgreSQL quotes a row that it refuses below the first line."""
    for one in (error, error.orig):
        if one is not None:
            one.args = tuple(str(argument).partition("\n")[0] for argument in one.args)


def _note_use(_connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    record.info["used_at"] = time.monotonic()


def _replace_if_gone(
    engine: Engine, connection: DBAPIConnection, record: ConnectionPoolEntry, _checked_out: PoolProxiedConnection
) -> None:
    # As the pool's own pre-ping, which asks before every transaction.
    if time.monotonic() - record.info.get("used_at", math.inf) < IDLE_SECONDS:
        return
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError(str(error)) from error


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # the driver begins no transaction by itself: _begin_sqlite does
    _use_write_ahead_log(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    # The one change that does not wait for the lock by itself: of several processes that open a new file, some fail.
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_POLL_SECONDS)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that turns into a writer fails at once whatever the timeout: a writer says so first.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
