"""Connections and transactions of the store, on SQLite or PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import psycopg
from sqlalchemy import (
    Connection,
    CursorResult,
    Engine,
    Executable,
    ScalarResult,
    func,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from jobs.outages import Outages
from jobs.store import postgresql, sqlite
from jobs.store.postgresql import WatchedConnection, is_outage, server_timeout
from jobs.store.revisions import TOO_OLD, is_too_old, known_revisions, schema_head, schema_revision
from jobs.store.tables import metadata
from settings.errors.mistakes import setting_error
from settings.store import StoreSettings

_WRITABLE = text("""
    SELECT current_setting('transaction_read_only') = 'on' AS only_reads, (
        SELECT min(name)
        FROM unnest(CAST(:names AS text[])) AS name, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed
        WHERE NOT has_table_privilege(to_regclass(name), needed)
    ) AS forbidden
""")
"""Whether PostgreSQL only reads, and a table that this user may not use. It locks nothing and writes nothing."""

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Values of a statement's bound parameters by name, or one such mapping for each row."""


class StorageUnavailable(Exception):  # noqa: N818 (it names a state of the world, not a mistake)
    """The store can't be reached, or can't run a transaction now. A later attempt may succeed."""


class NotMigratedError(StorageUnavailable):
    """The store does not have the schema that this version needs. The message says what to do."""


class DeadlockError(StorageUnavailable):
    """This transaction and others waited for each other, so PostgreSQL has ended it. The others go on."""


class LockedError(Exception):
    """Another transaction holds a lock for longer than this one was to wait for it. Nothing was stored."""


StoreError = DBAPIError
"""The database refused a statement for another reason than an outage, such as a missing table."""


@dataclass(frozen=True, slots=True, eq=False)
class Transaction:
    """A transaction of the store, or a connection in autocommit mode that only reads.

    Building a statement costs more than sending it. So statements that every job needs are constants with parameters.
    """

    connection: Connection
    settings: StoreSettings

    @property
    def is_sqlite(self) -> bool:
        return self.connection.dialect.name == "sqlite"

    def execute(self, statement: Executable, parameters: Parameters | None = None) -> CursorResult[*tuple[Any, ...]]:
        return self.connection.execute(statement, parameters)

    def scalar(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return the first column of the first row; None if there is no row."""
        return self.connection.scalar(statement, parameters)

    def scalars(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> ScalarResult[Any]:
        """Return the first column of all rows."""
        return self.connection.scalars(statement, parameters)

    def lock(self, number: int, name: str) -> None:
        """Wait for other transactions that hold the lock of a number and a name. SQLite has one writer at a time."""
        if not self.is_sqlite:
            self.execute(select(func.pg_advisory_xact_lock(number, func.hashtext(name))))


@dataclass(eq=False)
class Database:
    """An engine and the settings of this store."""

    engine: Engine
    settings: StoreSettings
    outages: Outages = field(init=False)
    _turn: _Turn = field(default_factory=lambda: _Turn())

    def __post_init__(self) -> None:
        self.outages = Outages(self.settings)

    @classmethod
    def open(cls, settings: StoreSettings) -> Database:
        """Return a store. It connects at its first use.

        Raises SettingError for a URL that can't be read or names an unsupported store.
        """
        url = _read_url(settings.database_url)
        is_sqlite = url.get_backend_name() == "sqlite"
        return cls(sqlite.open_engine(url) if is_sqlite else postgresql.open_engine(url, settings), settings)

    def create_file(self) -> None:
        """Create the file of a SQLite store and its folder, if they are missing. Raises OSError.

        Nothing else creates them, so a command that was given a wrong path leaves nothing there.
        """
        if self.is_sqlite and (path := sqlite.path_of(self.engine.url)):
            sqlite.create_private(path)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def read(self, *, avoid_sort: bool = False, snapshot: bool = False, slow: bool = False) -> Iterator[Transaction]:
        """A transaction that only reads. Each statement sees what was committed before it began.

        avoid_sort, slow: see :meth:`write`. snapshot: all statements see what was committed before the first one, as
        they always do on SQLite. Raises StorageUnavailable.
        """
        if avoid_sort or snapshot or slow or self.is_sqlite:
            engine = self._snapshots if snapshot and not self.is_sqlite else self.engine
            with self._naming_outages(), engine.connect() as connection, connection.begin():
                self._set_locally(connection, avoid_sort=avoid_sort, slow=slow)
                yield Transaction(connection, self.settings)
        else:
            # At READ COMMITTED, a transaction would only add the round trips for BEGIN and COMMIT.
            with self.without_transaction(writes=False) as tx:
                yield tx

    @contextmanager
    def without_transaction(self, *, writes: bool = True) -> Iterator[Transaction]:
        """A connection on which each statement is a transaction of its own. Raises as :meth:`write`.

        SQLite, which can't change several tables in one statement, has one transaction for all of them.
        """
        if self.is_sqlite:
            with self.write() as tx:
                yield tx
            return
        with self._naming_outages(writes=writes), self.engine.connect() as connection:
            # Set by hand: SQLAlchemy would set and reset the level of isolation, too. The pool takes it back.
            driver: Any = connection.connection.driver_connection
            driver.autocommit = True
            yield Transaction(connection, self.settings)

    @contextmanager
    def write(
        self,
        *,
        durable: bool = True,
        avoid_sort: bool = False,
        slow: bool = False,
        lock_seconds: float | None = None,
    ) -> Iterator[Transaction]:
        """A transaction that writes. It is committed at the end of the block, and rolled back if the block raises.

        durable: if false, PostgreSQL answers before the commit is on disk, and a crash of the database may undo it.
        avoid_sort: have PostgreSQL read the head of an index where it could sort a table instead. Told by statistics
        that a query matches much of a backlog, its planner would rather sort, the longer the backlog the slower.
        slow: a statement of this transaction may take as long as ``long_statement_seconds``, because its work grows
        with a job or with the store. lock_seconds: how long PostgreSQL waits for each lock; None: as long as for a
        statement. Raises StorageUnavailable, and LockedError if lock_seconds is given.
        """
        turn = self._turn if self.is_sqlite else nullcontext()
        with self._naming_outages(writes=True), turn, self.engine.connect() as connection:
            connection.execution_options(writes=True)
            with connection.begin():
                self._set_locally(
                    connection, durable=durable, avoid_sort=avoid_sort, slow=slow, lock_seconds=lock_seconds
                )
                yield Transaction(connection, self.settings)

    def _set_locally(
        self,
        connection: Connection,
        *,
        durable: bool = True,
        avoid_sort: bool = False,
        slow: bool = False,
        lock_seconds: float | None = None,
    ) -> None:
        long_seconds = self.settings.long_statement_seconds
        wanted = {
            "SET LOCAL synchronous_commit TO off": not durable,
            "SET LOCAL enable_sort TO off": avoid_sort,
            f"SET LOCAL statement_timeout TO '{server_timeout(long_seconds)}'": slow,
            f"SET LOCAL lock_timeout TO '{round(1000 * (lock_seconds or 0))}ms'": lock_seconds is not None,
        }
        settings = [setting for setting, is_wanted in wanted.items() if is_wanted]
        if settings and not self.is_sqlite:
            driver: Any = connection.connection.driver_connection
            if slow:
                driver.allow_silence(long_seconds)
            driver.begin(settings)

    @cached_property
    def _snapshots(self) -> Engine:
        # A transaction that only reads gets no serialization failures at this level.
        return self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def check(self) -> bool:
        """Raise StorageUnavailable unless the store answers and has the schema of this version or of a later one.

        Returns whether it is that of a later one. The previous version works with the schema of the next. So an upgrade
        migrates first, then replaces processes.
        """
        with self.read() as tx:
            found = schema_revision(tx.connection)
        if found is None:
            raise self._not_migrated("the database has no tables of this service: run `scoreline migrate`")
        if is_too_old(found):
            raise self._not_migrated(TOO_OLD)
        if found != schema_head() and found in known_revisions():
            raise self._not_migrated(
                f"the database is at migration {found} and this version needs {schema_head()}: run `scoreline migrate`"
            )
        return found != schema_head()

    def check_use(self) -> bool:
        """Do what :meth:`check` does, and raise StorageUnavailable unless PostgreSQL lets this user write, too."""
        is_later = self.check()
        if self.is_sqlite:
            return is_later
        with self.read() as tx:
            found = tx.execute(_WRITABLE, {"names": [*metadata.tables]}).one()
            if found.only_reads:
                driver = tx.connection.connection.driver_connection
                assert isinstance(driver, WatchedConnection)
                driver.only_reads()
                raise psycopg.errors.ReadOnlySqlTransaction("this server takes read-only transactions only")
            if found.forbidden is not None:
                raise psycopg.errors.InsufficientPrivilege(f"permission denied for table {found.forbidden}")
        return is_later

    def _not_migrated(self, message: str) -> NotMigratedError:
        error = NotMigratedError(message)
        self.outages.failed(error)
        return error

    @contextmanager
    def _naming_outages(self, *, writes: bool = False) -> Iterator[None]:
        try:
            with _naming_outages():
                yield
        except DeadlockError:
            raise
        except StorageUnavailable as error:
            self.outages.failed(error)
            raise
        except DBAPIError as error:
            if _is_about_schema(error.orig):
                self.check()  # a schema of another version explains it better
            raise
        else:
            self.outages.succeeded(wrote=writes)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


class _Turn:
    """Whose turn it is to write to SQLite, which allows one writer at a time. Polling its lock would be slower.

    While another process keeps SQLite's lock for too long, one thread at a time waits for it, and all others fail at
    once. So threads do not wait for it one after the other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locked = False  # whether the last writer waited for SQLite's lock in vain

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=0 if self._locked else sqlite.BUSY_SECONDS):
            raise StorageUnavailable("the database stays locked")

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        cause = error.orig if isinstance(error, DBAPIError) else None
        self._locked = getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
        self._lock.release()


def _read_url(text: str) -> URL:
    """Return the URL of a store. Raises SettingError unless this service can use such a store."""
    wanted = "it must be sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME; correct it"
    try:
        url = make_url(text)
        url.get_dialect()
    except (ArgumentError, ValueError):
        raise setting_error("database_url", text, wanted) from None
    if (url.get_backend_name(), url.get_driver_name()) not in (("sqlite", "pysqlite"), ("postgresql", "psycopg")):
        raise setting_error("database_url", text, wanted)
    if url.get_backend_name() == "sqlite" and (not url.database or url.database == ":memory:"):
        raise setting_error("database_url", text, "it must name a file, since several processes share it; add a path")
    return url


def _is_about_schema(error: BaseException | None) -> bool:
    """Whether a database may have refused a statement because its schema is that of another version."""
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return True
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR and "no such" in str(error)


@contextmanager
def _naming_outages() -> Iterator[None]:
    try:
        yield
    except PoolTimeoutError as error:
        raise StorageUnavailable(str(error)) from error
    except (DBAPIError, psycopg.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, psycopg.errors.LockNotAvailable):
            raise LockedError(str(cause)) from error
        if isinstance(cause, psycopg.errors.DeadlockDetected):
            raise DeadlockError(str(cause)) from error
        # If the connection is gone, any error is an outage: when PostgreSQL ends the session of a client that was
        # silent within a transaction, such as a frozen process, the client gets an internal error.
        is_gone = isinstance(error, DBAPIError) and error.connection_invalidated
        if is_gone or _is_outage(cause):
            raise StorageUnavailable(str(cause)) from error
        if isinstance(error, DBAPIError):
            _leave_out_details(error)
        raise


def _is_outage(cause: BaseException | None) -> bool:
    if isinstance(cause, psycopg.Error):
        return is_outage(cause)
    # SQLite calls wrong SQL an operational error too. That is a mistake in this code, not an outage.
    code = getattr(cause, "sqlite_errorcode", None)
    is_operational = isinstance(cause, sqlite3.OperationalError | sqlite3.InterfaceError)
    return (is_operational and code != sqlite3.SQLITE_ERROR) or code == sqlite3.SQLITE_NOTADB


def _leave_out_details(error: DBAPIError) -> None:
    """Keep the first line of an error only, so that no data is logged: PostgreSQL quotes the rejected row below it."""
    for one in (error, error.orig):
        if one is not None:
            one.args = tuple(str(argument).partition("\n")[0] for argument in one.args)
