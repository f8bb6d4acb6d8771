"""What is an outage of the database, and what a process notes of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from types import SimpleNamespace

import psycopg
import pytest
from structlog.testing import capture_logs

from jobs.outages import SETTLED_SECONDS, Outages
from jobs.queue.sweep import WORKER_FORGET_SECONDS, sweep
from jobs.queue.worker_registry import live_workers, register
from jobs.store.database import Database, StorageUnavailable
from jobs.store.postgresql import is_outage
from jobs.store.records import WorkerRecord
from settings.store import StoreSettings
from tests.jobs.conftest import HandClock
from tests.jobs.work import CARD, finish_all, submit, take
from tests.services import PostgresServer, wait_until

Refusal = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def database_name(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A fresh, migrated database."""
    name = postgres.create_database(postgres_template)
    yield name
    postgres.drop_database(name)


@pytest.fixture
def plain_store(postgres: PostgresServer, database_name: str) -> Iterator[Database]:
    """A store whose user is no superuser."""
    settings = StoreSettings(database_url=postgres.url_of_plain_user(database_name))
    with closing(Database.open(settings)) as database:
        yield database


@pytest.fixture(params=["standby", "INSERT", "UPDATE"])
def refusal(request: pytest.FixtureRequest, postgres: PostgresServer, database_name: str) -> Refusal:
    """Has PostgreSQL refuse to write."""
    if request.param == "standby":
        return postgres.only_reading
    return lambda: postgres.without_right(request.param, "jobs", database_name)


def test_a_server_that_refuses_to_write_is_an_outage_that_passes(plain_store: Database, refusal: Refusal) -> None:
    submit(plain_store)
    claimed = take(plain_store)
    plain_store.check_use()

    def is_refused(use: Callable[[], object]) -> bool:
        try:
            use()
        except StorageUnavailable:
            return True
        return False

    with refusal():
        wait_until(lambda: is_refused(plain_store.check_use), "it is noticed before anything is written")
        assert is_refused(lambda: submit(plain_store)) or is_refused(lambda: finish_all(plain_store, claimed))
        assert plain_store.outages.is_away
        plain_store.check()  # It can be read.
    wait_until(lambda: not is_refused(plain_store.check_use), "it can be used again")
    sweep(plain_store)
    assert not plain_store.outages.is_away
    if finish_all(plain_store, claimed).fenced == 0:
        assert submit(plain_store)


def test_sessions_that_only_read_are_replaced(
    plain_store: Database, database_name: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.store.postgresql.RENEWAL_SECONDS", 0.0)
    with psycopg.connect(postgres.url(database_name).replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database_name} SET default_transaction_read_only = on")
        for use in (lambda: submit(plain_store), plain_store.check_use):
            with pytest.raises(StorageUnavailable, match="read-only"):
                use()
        connection.execute(f"ALTER DATABASE {database_name} RESET default_transaction_read_only")
    submit(plain_store)  # A session keeps what was set when it began.


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (psycopg.OperationalError, True),  # The connection could not be made.
        (psycopg.errors.ReadOnlySqlTransaction, True),
        (psycopg.errors.InsufficientPrivilege, True),
        (psycopg.errors.DiskFull, True),
        (psycopg.errors.OutOfMemory, True),
        (psycopg.errors.TooManyConnections, True),
        (psycopg.errors.AdminShutdown, True),
        (psycopg.errors.CannotConnectNow, True),
        (psycopg.errors.QueryCanceled, True),
        (psycopg.errors.SerializationFailure, True),
        (psycopg.errors.IoError, True),
        (psycopg.errors.ConnectionFailure, True),
        (psycopg.errors.UndefinedTable, False),
        (psycopg.errors.SyntaxError, False),
        (psycopg.errors.UniqueViolation, False),
        (psycopg.errors.InFailedSqlTransaction, False),
        (psycopg.errors.ProgramLimitExceeded, False),
        (psycopg.errors.InternalError_, False),
    ],
)
def test_an_outage_is_what_may_pass_by_itself(error: type[psycopg.Error], expected: bool) -> None:
    assert is_outage(error("it says")) is expected


def test_a_cause_is_logged_once_in_an_outage_and_its_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    outages = Outages(StoreSettings(database_url="postgresql+psycopg://scoreline:s3cret@host/name"))
    with capture_logs() as logs:
        for _ in range(3):
            outages.failed(StorageUnavailable("connection refused"))
        outages.succeeded(wrote=False)
        outages.failed(StorageUnavailable("the database system is starting up"))
        outages.succeeded(wrote=True)
        assert [log["event"] for log in logs] == ["the database is away"] * 2
        now = time.monotonic() + SETTLED_SECONDS
        monkeypatch.setattr("jobs.outages.time", SimpleNamespace(monotonic=lambda: now))
        outages.succeeded(wrote=False)
        outages.succeeded(wrote=True)
        outages.failed(StorageUnavailable("connection refused"))
    events = [log["event"] for log in logs]
    assert events == ["the database is away"] * 2 + ["the database is back", "the database is away"]
    assert "connection refused; start PostgreSQL there" in logs[0]["reason"]
    assert "s3cret" not in str(logs)


def test_a_worker_is_live_right_after_an_outage_in_which_it_could_not_say_so(
    timed_store: Database, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [1000.0]
    monkeypatch.setattr("jobs.outages.time", SimpleNamespace(monotonic=lambda: seconds[0]))

    def passes(time_: float) -> None:
        clock.turn(time_)
        seconds[0] += time_

    register(timed_store, WorkerRecord("worker", CARD, "made-up", "none", "float32"))
    passes(1.0)
    timed_store.outages.failed(StorageUnavailable("connection refused"))
    passes(2 * WORKER_FORGET_SECONDS)
    sweep(timed_store)
    assert [worker.id for worker in live_workers(timed_store, 20.0)] == ["worker"]
    passes(SETTLED_SECONDS)
    assert live_workers(timed_store, 20.0) == [], "by now it would have said so"
