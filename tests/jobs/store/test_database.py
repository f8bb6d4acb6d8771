"""Transactions, outages and clocks, where the two databases differ."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from jobs.queue.read import get_job
from jobs.queue.worker_registry import live_workers
from jobs.store.clock import NOW
from jobs.store.database import Database, NotMigratedError, StorageUnavailable, StoreError
from jobs.store.migration import migrate
from jobs.store.records import JobStatus
from jobs.store.revisions import UnknownSchemaError, schema_head
from jobs.store.tables import api_keys
from jobs.tenancy.keys import Scope, create_key
from settings.errors.mistakes import SettingError
from settings.store import StoreSettings
from tests.jobs.conftest import HandClock
from tests.jobs.work import finish_all, submit, take
from tests.services import PostgresServer, wait_until
from tests.stores import migrate_store


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def open_and_write(path: Path, together: threading.Barrier) -> None:
        database = Database.open(StoreSettings(database_url=f"sqlite:///{path}"))
        together.wait()
        try:
            database.create_file()
            with database.write():
                pass
        except StorageUnavailable as error:
            errors.append(error)
        database.close()

    for attempt in range(60):  # one in about twenty-five failed before the change of journal was tried again
        together = threading.Barrier(6)
        arguments = (tmp_path / f"{attempt}.db", together)
        threads = [threading.Thread(target=open_and_write, args=arguments) for _ in range(together.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_a_restart_of_the_database_interrupts_and_loses_nothing(
    postgres: PostgresServer, postgres_store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.store.postgresql.IDLE_SECONDS", 0.0)
    job_id = submit(postgres_store, chunks=2)

    def interrupted() -> None:
        with postgres_store.write() as tx:
            tx.execute(text("DELETE FROM chunks"))
            postgres.restart()
            tx.execute(text("DELETE FROM jobs"))

    with pytest.raises(StorageUnavailable):
        interrupted()
    assert finish_all(postgres_store, take(postgres_store)).job_ids == (job_id,)
    postgres.restart()  # connections that were idle meanwhile are found dead before they are used
    assert get_job(postgres_store, "default", job_id).status is JobStatus.SUCCEEDED
    postgres.stop()
    with pytest.raises(StorageUnavailable):
        get_job(postgres_store, "default", job_id)
    postgres.start()
    assert get_job(postgres_store, "default", job_id).status is JobStatus.SUCCEEDED


@pytest.mark.parametrize("use", [submit, take, lambda store: get_job(store, "default", "job")])
def test_a_connection_that_is_gone_just_after_its_use_is_an_outage_once(
    use: Callable[[Database], object],
    postgres: PostgresServer,
    postgres_store: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobs.store.postgresql.IDLE_SECONDS", 3600.0)  # so that it is not asked whether it is alive
    submit(postgres_store)
    postgres.restart()
    with pytest.raises(StorageUnavailable):
        use(postgres_store)
    assert take(postgres_store).chunk_ids


@pytest.mark.parametrize("use", [submit, take, lambda store: finish_all(store, take(store))])
def test_all_connections_that_are_gone_are_an_outage_once(
    use: Callable[[Database], object],
    postgres: PostgresServer,
    postgres_store: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobs.store.postgresql.IDLE_SECONDS", 3600.0)
    submit(postgres_store)
    with ExitStack() as together:
        for _ in range(3):
            together.enter_context(postgres_store.engine.connect())
    postgres.restart()
    with pytest.raises(StorageUnavailable):
        use(postgres_store)
    with postgres_store.engine.connect():  # otherwise the same connection, which is new, would be used again
        use(postgres_store)


def test_a_session_that_the_database_ended_for_its_silence_is_an_outage(postgres_store: Database) -> None:
    """As of a process that was frozen within a transaction and wakes up."""

    def silent() -> None:
        with postgres_store.write() as tx:
            tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = '10ms'"))
            mine = tx.scalar(text("SELECT pg_backend_pid()"))
            wait_until(lambda: mine not in sessions(), "the session is ended")

    def sessions() -> list[int]:
        with postgres_store.read() as tx:
            return list(tx.scalars(text("SELECT pid FROM pg_stat_activity")))

    with pytest.raises(StorageUnavailable):
        silent()


def test_a_failed_transaction_changes_nothing(store: Database) -> None:
    job_id = submit(store)

    def fail() -> None:
        with store.write() as tx:
            tx.execute(text("DELETE FROM chunks"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert finish_all(store, take(store)).job_ids == (job_id,)


def test_settings_of_a_transaction_do_not_change_what_it_sees(postgres_store: Database) -> None:
    """Whatever the database's own default is."""
    level, may_write = text("SHOW transaction_isolation"), text("SHOW transaction_read_only")
    with postgres_store.write() as tx:
        tx.connection.exec_driver_sql("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    for settings in ({"durable": False}, {"slow": True}, {}):
        with postgres_store.write(**settings) as tx:
            assert (tx.scalar(level), tx.scalar(may_write)) == ("read committed", "off")
    with postgres_store.read(snapshot=True, slow=True) as tx:
        assert (tx.scalar(level), tx.scalar(may_write)) == ("repeatable read", "on")
    with postgres_store.write(durable=False) as tx:
        assert (tx.scalar(level), tx.scalar(may_write)) == ("read committed", "off")


def test_options_of_the_url_reach_postgresql_but_for_those_that_this_service_sets(postgres_url: str) -> None:
    options = "-c work_mem=5MB -c statement_timeout=1h"
    settings = StoreSettings(database_url=f"{postgres_url}?options={quote(options)}")
    with closing(Database.open(settings)) as store, store.read() as tx:
        assert tx.scalar(text("SHOW work_mem")) == "5MB"
        assert tx.scalar(text("SHOW statement_timeout")) == "6s"


def test_a_lock_timeout_of_the_database_is_not_used(postgres_store: Database) -> None:
    """Whoever waits for a lock would get an error that nothing expects."""
    url = postgres_store.engine.url
    with postgres_store.write() as tx:
        tx.execute(text(f"ALTER DATABASE {url.database} SET lock_timeout TO '10ms'"))
    settings = StoreSettings(database_url=url.render_as_string(hide_password=False))
    with closing(Database.open(settings)) as store, store.write() as tx:
        assert tx.scalar(text("SHOW lock_timeout")) == "0"


def test_a_store_that_stays_locked_is_unavailable(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.store.sqlite.BUSY_SECONDS", 0.05)
    store = Database.open(StoreSettings(database_url=sqlite_url))
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageUnavailable, match="locked"):
        submit(store)
    other.execute("ROLLBACK")
    submit(store)
    other.close()
    store.close()


def test_a_store_that_fails_otherwise_is_unavailable_at_once(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    file.touch()
    started = time.monotonic()
    with (
        closing(Database.open(StoreSettings(database_url=f"sqlite:///file:{file}?mode=ro&uri=true"))) as store,
        pytest.raises(StorageUnavailable, match="attempt to write a readonly database"),
    ):
        store.check()
    assert time.monotonic() - started < 5.0


def test_a_writer_in_another_process_is_waited_for(sqlite_url: str) -> None:
    """The transaction begins as a writer's. One that turned into a writer later would fail here at once."""
    store = Database.open(StoreSettings(database_url=sqlite_url))
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    submit(store)
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE jobs SET cached_tokens = 5")
    release = threading.Timer(0.1, other.execute, ["COMMIT"])
    release.start()
    assert finish_all(store, take(store)).job_ids
    release.join()
    other.close()
    store.close()


def test_wrong_sql_is_an_error_and_no_outage(store: Database) -> None:
    with pytest.raises(DBAPIError), store.read() as tx:
        tx.execute(text("SELECT nothing FROM nowhere"))


@pytest.mark.parametrize("at", ["name", "tenant", "id"])
def test_errors_of_the_database_quote_no_data(store: Database, at: str) -> None:
    """A row that is refused for a null, a reference that leads nowhere, and a key that is there already."""
    value = {"name": None, "tenant": "nobody", "id": create_key(store, "acme", "a key", list(Scope))[1].id}[at]
    row = {"id": "new", "tenant": "acme", "name": "a key", "secret_sha256": "private", "scopes": [], "created_at": 0.0}
    with pytest.raises(IntegrityError) as caught, store.write() as tx:
        tx.execute(insert(api_keys).values(row | {at: value}))
    words = "".join(traceback.format_exception(caught.value))
    assert "INSERT INTO api_keys" in words
    for sent in ("private", "a key", "'new'", "(new", "nobody", str(value) if value else "private"):
        assert sent not in words


def test_sqlite_is_set_up_to_survive(sqlite_url: str) -> None:
    store = Database.open(StoreSettings(database_url=sqlite_url))
    with store.read() as tx:
        found = [
            tx.execute(text(f"PRAGMA {pragma}")).scalar_one()
            for pragma in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert found == ["wal", 2, 1]
    store.close()


def test_now_is_unix_seconds_on_the_clock_of_the_database_or_of_a_test(
    store: Database, timed_store: Database, clock: HandClock
) -> None:
    with store.read() as tx:
        assert tx.execute(select(NOW)).scalar_one() == pytest.approx(time.time(), abs=2.0)
    with timed_store.read() as tx:
        assert tx.execute(select(NOW)).scalar_one() == clock.now


def test_only_its_user_may_read_a_new_sqlite_store(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    url = f"sqlite:///{folder / 'jobs.db'}"
    previous = os.umask(0)
    try:
        migrate_store(url)
        with closing(Database.open(StoreSettings(database_url=url))) as store, store.read() as tx:
            tx.execute(select(api_keys))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    finally:
        os.umask(previous)
    assert modes == {"new": 0o700, "jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}


def test_a_sqlite_store_is_made_by_its_migration_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a/b/store.db"
    database = Database.open(StoreSettings(database_url=url))
    with pytest.raises(StorageUnavailable, match="there is no such file"):
        database.check()
    database.close()
    assert list(tmp_path.iterdir()) == []
    migrate_store(url)
    assert (tmp_path / "a" / "b" / "store.db").is_file()


def test_a_statement_that_fails_for_the_schema_says_what_to_do(store_url: str) -> None:
    database = Database.open(StoreSettings(database_url=store_url))
    with database.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '0015'"))
        tx.execute(text("ALTER TABLE workers RENAME TO others"))
    with pytest.raises(NotMigratedError, match="run `scoreline migrate`"):
        live_workers(database, 1.0)
    with database.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = :head"), {"head": schema_head()})
    with pytest.raises(StoreError):  # of this schema, it is a mistake
        live_workers(database, 1.0)
    database.close()


def test_a_store_that_a_later_version_has_migrated_is_used_but_not_migrated(store_url: str) -> None:
    with closing(Database.open(StoreSettings(database_url=store_url))) as database:
        assert not database.check()
        with database.write() as tx:
            tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        assert database.check()
        with pytest.raises(UnknownSchemaError, match=r"at migration 9999, .* a later version of Scoreline"):
            migrate(database)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/name"])
def test_a_store_that_can_not_be_shared_is_refused(url: str) -> None:
    with pytest.raises(SettingError, match=r"it must (name a file|be sqlite:///PATH or postgresql\+psycopg://)"):
        Database.open(StoreSettings(database_url=url))


def test_postgresql_shows_which_program_a_connection_belongs_to(postgres_store: Database) -> None:
    with postgres_store.read() as tx:
        shown = tx.scalar(text("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"))
        assert shown in ("scoreline pytest", "scoreline"), "a process of pytest-xdist has no module"
    url = postgres_store.engine.url.update_query_dict({"application_name": "mine"})
    settings = StoreSettings(database_url=url.render_as_string(hide_password=False))
    with closing(Database.open(settings)) as named, named.read() as tx:
        assert tx.scalar(text("SHOW application_name")) == "mine"
