"""A migration of a database that others use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import insert, inspect, literal, select, text

from jobs.store.database import Database, StorageUnavailable
from jobs.store.migration import alembic_config, migrate
from jobs.store.tables import jobs
from settings.store import StoreSettings
from tests.jobs.work import somebody_waits, submit
from tests.services import wait_until


@contextmanager
def backup(store: Database) -> Iterator[None]:
    """Hold the lock of a dump on the table of jobs."""
    with store.read(snapshot=True) as tx:
        tx.execute(text("LOCK TABLE jobs IN ACCESS SHARE MODE"))
        yield


def downgrade(store: Database) -> None:
    with store.write() as tx:
        command.downgrade(alembic_config(tx.connection), "0015")


def store_again(store: Database) -> None:
    """Store the one job again, with the columns that the previous version knows."""
    with store.write() as tx:
        names = [column["name"] for column in inspect(tx.connection).get_columns("jobs") if column["name"] != "id"]
        columns = select(literal("job_again"), *jobs.c[tuple(names)])
        tx.execute(insert(jobs).from_select(["id", *names], columns))


def test_work_is_accepted_while_a_migration_waits_for_a_backup(
    postgres_store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.store.migration.LOCK_SECONDS", 1.0)
    submit(postgres_store)
    downgrade(postgres_store)
    migrating = threading.Thread(target=migrate, args=(postgres_store,))
    with backup(postgres_store):
        migrating.start()
        wait_until(lambda: somebody_waits(postgres_store), "the migration waits")
        store_again(postgres_store)
        assert migrating.is_alive()
    migrating.join()
    postgres_store.check()


def test_a_migration_begins_again_if_it_and_another_session_wait_for_each_other(
    postgres_store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.store.migration.PAUSE_SECONDS", 0.1)
    submit(postgres_store)
    downgrade(postgres_store)
    upgrade, is_locked, begun = command.upgrade, threading.Event(), []

    def upgrade_behind_a_lock(config: Config, revision: str) -> None:
        begun.append(revision)
        if len(begun) == 1:
            # As an index that is made holds it. The migration will want a stronger lock.
            config.attributes["connection"].execute(text("LOCK TABLE jobs IN SHARE MODE"))
            is_locked.set()
            wait_until(lambda: somebody_waits(postgres_store), "the other session waits for the migration")
        upgrade(config, revision)

    monkeypatch.setattr(command, "upgrade", upgrade_behind_a_lock)
    migrating = threading.Thread(target=migrate, args=(postgres_store,))
    with postgres_store.write() as tx:
        tx.execute(text("SELECT count(*) FROM jobs"))
        migrating.start()
        assert is_locked.wait(20)
        tx.execute(text("UPDATE jobs SET cached_tokens = cached_tokens"))
    migrating.join()
    assert begun == ["head", "head"]
    postgres_store.check()


def test_a_migration_gives_up_in_the_end(postgres_store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.store.migration.LOCK_SECONDS", 0.05)
    monkeypatch.setattr("jobs.store.migration.PAUSE_SECONDS", 0.05)
    downgrade(postgres_store)
    url = postgres_store.engine.url.render_as_string(hide_password=False)
    settings = StoreSettings(database_url=url, long_statement_seconds=2.0)
    said = "kept a table locked for 2 s, so nothing was migrated"
    with (
        closing(Database.open(settings)) as database,
        backup(postgres_store),
        pytest.raises(StorageUnavailable, match=said),
    ):
        migrate(database)
    with pytest.raises(StorageUnavailable, match="at migration 0015"):
        postgres_store.check()
