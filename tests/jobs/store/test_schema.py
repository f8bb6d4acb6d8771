"""The migrations and the tables are one schema, on both databases."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, select, text, update

import jobs.file_batches.tables
import jobs.files.tables
from jobs.queue.accept import accept
from jobs.queue.lease import release
from jobs.store.database import Database, StorageUnavailable
from jobs.store.migration import alembic_config, migrate
from jobs.store.revisions import ROOT, UnknownSchemaError, known_revisions, schema_head
from jobs.store.tables import jobs as jobs_table
from jobs.store.tables import metadata, prefixes
from scoring.work import SHORTEST_SHARED, work_of_prefix
from settings.store import StoreSettings
from tests.jobs.work import submission, submit, take
from tests.services import PostgresServer
from tests.stores import migrate_store


def test_migrations_produce_exactly_the_tables(store_url: str) -> None:
    database = Database.open(StoreSettings(database_url=store_url))
    with database.write() as tx:
        command.check(alembic_config(tx.connection))
    database.close()


def test_the_names_of_the_files_are_the_revisions_of_alembic() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert scripts.get_heads() == [schema_head()]
    assert {script.revision for script in scripts.walk_revisions()} == known_revisions()


def test_the_command_that_writes_migrations_knows_all_tables(tmp_path: Path) -> None:
    """Otherwise it would write one that drops those that it does not know."""
    url = f"sqlite:///{tmp_path}/store.db"
    migrate_store(url)
    checked = subprocess.run(
        [sys.executable, "-m", "alembic", "check"],
        cwd=ROOT,
        env=os.environ | {"SCORELINE_DATABASE_URL": url},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_indexes_are_partial_where_the_tables_say_so(store_url: str) -> None:
    """`alembic check` does not compare predicates, and a full index in place of a partial one would only be slow."""
    database = Database.open(StoreSettings(database_url=store_url))
    dialect = database.engine.dialect.name
    found = {
        index["name"]
        for table in metadata.sorted_tables
        for index in inspect(database.engine).get_indexes(table.name)
        if index.get("dialect_options", {}).get(f"{dialect}_where") is not None
    }
    wanted = {
        index.name
        for table in metadata.sorted_tables
        for index in table.indexes
        if index.dialect_options[dialect]["where"] is not None
    }
    assert found == wanted
    assert {"ix_chunks_waiting", jobs.file_batches.tables.NEXT_STEP_INDEX} <= wanted
    database.close()


def test_a_downgrade_leaves_nothing_behind(store_url: str) -> None:
    database = Database.open(StoreSettings(database_url=store_url))
    with database.write() as tx:
        command.downgrade(alembic_config(tx.connection), "base")
    assert inspect(database.engine).get_table_names() == ["alembic_version"]
    database.close()


def test_work_that_a_worker_held_during_the_upgrade_can_be_claimed_once_it_is_lost(store: Database) -> None:
    submit(store)
    claimed = take(store)
    with store.write() as tx:
        command.downgrade(alembic_config(tx.connection), "0015")
        command.upgrade(alembic_config(tx.connection), "head")
    store.check()
    release(store, claimed.batch_id)
    assert take(store).chunk_ids == claimed.chunk_ids


def test_a_database_of_version_0_2_0_is_upgraded_with_its_work_and_without_its_trigger(store: Database) -> None:
    submit(store)
    trigger = "CREATE TRIGGER fill_in_tokenizer AFTER INSERT ON chunks "
    with store.write() as tx:
        command.downgrade(alembic_config(tx.connection), "0015")
        if store.is_sqlite:
            tx.execute(text(trigger + "BEGIN SELECT 1; END"))
        else:
            tx.execute(
                text("CREATE FUNCTION fill_in_tokenizer() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
            )
    migrate(store)
    store.check()
    with store.read() as tx:
        known = "SELECT name FROM sqlite_master" if store.is_sqlite else "SELECT proname FROM pg_proc"
        assert "fill_in_tokenizer" not in tx.scalars(text(known)).all()
    assert len(take(store).chunk_ids) == 1


@pytest.mark.parametrize("length", [SHORTEST_SHARED - 1, SHORTEST_SHARED, 2_000, 40_000])
def test_a_prefix_from_before_its_work_was_stored_gets_the_work_of_a_new_one(store: Database, length: int) -> None:
    submit(store, prefix=tuple(range(length)))
    with store.write() as tx:
        command.downgrade(alembic_config(tx.connection), "0018")
        command.upgrade(alembic_config(tx.connection), "head")
        assert tx.scalar(select(prefixes.c.work)) == work_of_prefix(length)
        assert tx.scalar(select(jobs_table.c.ends_durably)) is True


def test_a_prefix_that_the_previous_version_stores_during_an_upgrade_counts_as_its_tokens(store: Database) -> None:
    one = submission(prefix=tuple(range(2_000)))
    accept(store, one)
    with store.write() as tx:
        tx.execute(update(prefixes).values(work=None))
    assert take(store).tokens == {"default": 2_000 + one.chunks[0].work}


def test_the_schema_of_a_version_that_is_too_old_is_told_from_a_later_one(store: Database) -> None:
    with store.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '0012'"))
    with pytest.raises(StorageUnavailable, match=r"migrate it with version 0\.2\.0 first"):
        store.check()
    with pytest.raises(UnknownSchemaError, match=r"before 0\.2\.0"):
        migrate(store)


def test_the_schema_of_a_later_version_is_accepted(store: Database) -> None:
    """It is migrated to first, and then process after process is replaced."""
    with store.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    store.check()


def test_a_store_that_was_never_migrated_is_not_ready(tmp_path: object) -> None:
    sqlite3.connect(f"{tmp_path}/empty.db").close()
    database = Database.open(StoreSettings(database_url=f"sqlite:///{tmp_path}/empty.db"))
    with pytest.raises(StorageUnavailable, match="scoreline migrate"):
        database.check()
    migrate_store(f"sqlite:///{tmp_path}/empty.db")
    database.check()
    database.close()


def test_two_processes_may_migrate_at_once(postgres: PostgresServer, tmp_path: object) -> None:
    for url in (f"sqlite:///{tmp_path}/both.db", postgres.url(postgres.create_database())):
        errors: list[Exception] = []

        def run(url: str = url, errors: list[Exception] = errors) -> None:
            try:
                migrate_store(url)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        database = Database.open(StoreSettings(database_url=url))
        database.check()
        database.close()


def test_a_database_that_is_down_is_an_outage(tmp_path: object) -> None:
    database = Database.open(StoreSettings(database_url="postgresql+psycopg://nobody@127.0.0.1:1/none"))
    with pytest.raises(StorageUnavailable):
        database.check()
    database.close()
