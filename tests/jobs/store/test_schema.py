"""The migrations and the tables are one schema, on both databases."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect, text

import jobs.file_batches.tables
import jobs.files.tables
from jobs.queue.claims.claim import claim
from jobs.queue.lease import release
from jobs.store.database import Database, StorageUnavailable
from jobs.store.revisions import ROOT, alembic_config
from jobs.store.tables import metadata
from scoring.options import Priority
from settings.store import StoreSettings
from tests.jobs.work import CARD, submit, take
from tests.services import PostgresServer
from tests.stores import migrate_store


def test_migrations_produce_exactly_the_tables(store_url: str) -> None:
    database = Database.open(StoreSettings(database_url=store_url))
    with database.write() as tx:
        command.check(alembic_config(tx.connection))
    database.close()


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


def test_an_upgrade_sets_the_tokenizer_of_waiting_chunks(store: Database) -> None:
    """The downgrade takes away what chunks need, so this is a backlog as the version before left it."""
    submit(store, chunks=2)
    submit(store, prefix=(4,), tokenizer_fingerprint="0" * 64)
    with store.write() as tx:
        command.downgrade(alembic_config(tx.connection), "0001")
    with pytest.raises(StorageUnavailable, match="at migration 0001"):
        store.check()
    with store.write() as tx:
        command.upgrade(alembic_config(tx.connection), "head")
    store.check()
    assert len(take(store).chunk_ids) == 2
    assert claim(store, "worker", CARD, 1_000) is None
    other = claim(store, "worker", replace(CARD, tokenizer_fingerprint="0" * 64), 1_000)
    assert other is not None
    assert [group.prefix.tolist() for group in other.groups] == [[4]]


def test_an_upgrade_sets_whether_waiting_chunks_are_interactive(store: Database) -> None:
    submit(store, prefix=(4,), priority=Priority.INTERACTIVE)
    submit(store, prefix=(5,))
    with store.write() as tx:
        command.downgrade(alembic_config(tx.connection), "0002")
        command.upgrade(alembic_config(tx.connection), "head")
    claimed = take(store, interactive_only=True)
    assert [group.prefix.tolist() for group in claimed.groups] == [[4]]
    assert not take(store).interactive


def test_work_that_a_worker_held_during_the_upgrade_can_be_claimed_once_it_is_lost(store: Database) -> None:
    submit(store)
    claimed = take(store)
    with store.write() as tx:
        command.downgrade(alembic_config(tx.connection), "0001")
        command.upgrade(alembic_config(tx.connection), "head")
    release(store, claimed.batch_id)
    assert take(store).chunk_ids == claimed.chunk_ids


def test_an_api_of_the_previous_version_can_accept_jobs(store: Database) -> None:
    """It says nothing of what a chunk needs: the tokenizer is that of its prefix, and nobody is kept out otherwise."""
    submit(store)
    [first] = take(store).chunk_ids
    columns = "job_id, tenant, model, prefix_id, due_at, item_count, token_count, failures"
    with store.write() as tx:
        copied = f"INSERT INTO chunks (state, first_item, {columns}) SELECT 'waiting', 1, {columns} FROM chunks"
        tx.execute(text(copied))
        tx.execute(
            text(
                "INSERT INTO chunk_inputs (chunk_id, rows) SELECT chunks.id, chunk_inputs.rows"
                " FROM chunks, chunk_inputs WHERE chunks.state = 'waiting'"
            )
        )
    assert claim(store, "worker", replace(CARD, tokenizer_fingerprint="0" * 64), 1_000) is None
    [second] = take(store).chunk_ids
    assert first != second


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
