"""A PostgreSQL that is frozen, or that the network no longer reaches, is an outage that ends after a bounded time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from sqlalchemy import text

from jobs.queue.read import get_job
from jobs.store.database import Database, StorageUnavailable
from jobs.store.postgresql import WatchedConnection
from jobs.store.records import JobStatus
from settings.store import StoreSettings
from tests.jobs.work import finish_all, submit, take
from tests.services import PostgresServer, wait_until

STATEMENT_SECONDS = 0.3
ONE = text("SELECT 1")


@pytest.fixture
def store(postgres_url: str) -> Iterator[Database]:
    """A store that gives PostgreSQL little time."""
    store = Database.open(StoreSettings(database_url=postgres_url, statement_seconds=STATEMENT_SECONDS))
    yield store
    store.close()


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What each attempt to connect to PostgreSQL appends to."""
    connect = WatchedConnection.connect
    made: list[object] = []

    def counted(*arguments: object, **named: object) -> object:
        made.append(arguments)
        return connect(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(WatchedConnection, "connect", counted)
    return made


def outcomes(*actions: Callable[[], object]) -> list[BaseException | None]:
    """Run actions in threads at the same time. Return the error of each, or None if it had none."""
    threads = ThreadPoolExecutor(len(actions))
    running = [threads.submit(action) for action in actions]
    try:
        # Without a deadline of the store, this would take as long as the freeze.
        wait_until(lambda: all(one.done() for one in running), "nobody waits for a frozen database any more", 20)
    finally:
        threads.shutdown(wait=False)
    return [one.exception() for one in running]


def read(store: Database) -> None:
    with store.read() as tx:
        tx.execute(ONE)


def test_a_statement_and_a_commit_that_are_not_answered_are_outages(store: Database, postgres: PostgresServer) -> None:
    job_id = submit(store)
    claimed = take(store)

    def in_statement(freezing: ExitStack) -> None:
        with store.read() as tx:
            freezing.enter_context(postgres.frozen())
            tx.execute(ONE)

    def in_commit(freezing: ExitStack) -> None:
        with store.write() as tx:
            tx.execute(text("UPDATE jobs SET cached_tokens = 5"))
            freezing.enter_context(postgres.frozen())

    for use in (in_statement, in_commit):
        with ExitStack() as freezing:
            (error,) = outcomes(lambda use=use, freezing=freezing: use(freezing))  # type: ignore[misc]
            assert isinstance(error, StorageUnavailable)
    assert finish_all(store, claimed).job_ids == (job_id,)
    assert get_job(store, "default", job_id).status is JobStatus.SUCCEEDED


def test_no_connection_is_used_that_was_open_during_a_silence(
    store: Database, postgres: PostgresServer, attempts: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.store.postgresql.IDLE_SECONDS", 3600.0)  # so that none is tested before its use
    together = threading.Barrier(4)

    def read_together() -> None:
        with store.read() as tx:
            together.wait()
            tx.execute(ONE)

    assert outcomes(*4 * [read_together]) == 4 * [None]
    assert len(attempts) == 4
    with postgres.frozen():
        (error,) = outcomes(lambda: read(store))
        assert isinstance(error, StorageUnavailable)
        assert len(attempts) == 4, "an open connection was used"
    read(store)
    assert len(attempts) == 5, "the next one is a new connection, not one of the other three"


def test_a_living_server_ends_a_slow_statement_itself_and_the_connection_stays(
    store: Database, attempts: list[object]
) -> None:
    with pytest.raises(StorageUnavailable, match="statement timeout"), store.read() as tx:
        tx.execute(text("SELECT pg_sleep(10)"))
    read(store)
    assert len(attempts) == 1


def test_a_slow_transaction_may_take_longer_as_long_as_the_server_lets_others_connect(
    store: Database, attempts: list[object]
) -> None:
    with store.write(slow=True) as tx:
        tx.execute(text(f"SELECT pg_sleep({2.5 * STATEMENT_SECONDS})"))
    assert len(attempts) > 1 + 1, "more than once in the statement, a new connection showed that the server is there"
    with pytest.raises(StorageUnavailable, match="statement timeout"):
        slow_in_a_quick_transaction(store)


def test_a_limit_that_is_meant_as_none_is_taken(postgres_url: str) -> None:
    store = Database.open(StoreSettings(database_url=postgres_url, statement_seconds=1e9, long_statement_seconds=1e9))
    with store.write(slow=True) as tx:
        assert tx.scalar(text("SHOW statement_timeout")) == "2147483647ms"
    store.close()


def slow_in_a_quick_transaction(store: Database) -> None:
    """Use the connection that a slow transaction has used before."""
    with store.write() as tx:
        tx.execute(text("SELECT pg_sleep(10)"))


def test_each_side_notices_that_the_network_is_lost(store: Database) -> None:
    with store.read() as tx:
        found = [tx.scalar(text(f"SHOW {name}")) for name in ("tcp_user_timeout", "tcp_keepalives_idle")]
        driver = tx.connection.connection.driver_connection
        assert isinstance(driver, WatchedConnection)
        own = driver.info.get_parameters()
    assert found == ["15000", "5"]
    assert (own["tcp_user_timeout"], own["keepalives_idle"], own["connect_timeout"]) == ("15000", "5", "2")


@pytest.mark.slow
def test_while_the_server_is_silent_one_thread_at_a_time_tries_to_connect(
    store: Database, postgres: PostgresServer, attempts: list[object]
) -> None:
    read(store)
    with postgres.frozen():
        assert all(isinstance(error, StorageUnavailable) for error in outcomes(*12 * [lambda: read(store)]))
        attempts.clear()
        errors = outcomes(*12 * [lambda: read(store)])
        assert all(isinstance(error, StorageUnavailable) for error in errors)
        assert len(attempts) == 1
        (error,) = outcomes(lambda: slow(store))
        assert isinstance(error, StorageUnavailable)
    assert outcomes(*12 * [lambda: read(store)]).count(None) >= 1, "whoever tries to connect succeeds"
    assert outcomes(*12 * [lambda: read(store)]) == 12 * [None]


@pytest.mark.slow
def test_a_slow_transaction_ends_when_the_server_falls_silent(store: Database, postgres: PostgresServer) -> None:
    freezing = ExitStack()

    def use() -> None:
        with store.write(slow=True) as tx:
            tx.execute(ONE)
            freezing.enter_context(postgres.frozen())
            tx.execute(ONE)

    with freezing:
        (error,) = outcomes(use)
        assert isinstance(error, StorageUnavailable)
    read(store)


def slow(store: Database) -> None:
    with store.read(slow=True) as tx:
        tx.execute(ONE)


def test_threads_do_not_wait_for_a_locked_sqlite_one_after_the_other(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.store.sqlite.BUSY_SECONDS", 0.2)
    store = Database.open(StoreSettings(database_url=sqlite_url))
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    errors = outcomes(*12 * [lambda: submit(store)])
    assert all(isinstance(error, StorageUnavailable) for error in errors)
    waited = [error for error in errors if "locked" in str(error) and "stays" not in str(error)]
    assert len(waited) <= 2, "the others did not begin to wait for the lock"
    other.execute("ROLLBACK")
    submit(store)
    other.close()
    store.close()
