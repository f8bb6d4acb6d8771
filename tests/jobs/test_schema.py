"""The migrations and the tables are one schema, on both databases."""

from __future__ import annotations

import threading

import pytest
from alembic import command
from sqlalchemy import inspect

from jobs.database import Database, StorageUnavailable
from jobs.migrate import migrate
from jobs.schema import alembic_config
from jobs.tables import metadata
from settings.store import StoreSettings
from tests.services import PostgresServer


def test_migrations_produce_exactly_the_tables(store_url: str) -> None:
    database = Database.open(StoreSettings(database_url=store_url))
    with database.write() as connection:
        command.check(alembic_config(connection))
    database.close()


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
    assert "ix_chunks_waiting" in wanted
    database.close()


def test_a_downgrade_leaves_nothing_behind(store_url: str) -> None:
    database = Database.open(StoreSettings(database_url=store_url))
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "base")
    assert inspect(database.engine).get_table_names() == ["alembic_version"]
    database.close()


def test_a_store_that_was_never_migrated_is_not_ready(tmp_path: object) -> None:
    database = Database.open(StoreSettings(database_url=f"sqlite:///{tmp_path}/empty.db"))
    with pytest.raises(StorageUnavailable, match="migration None"):
        database.check()
    migrate(f"sqlite:///{tmp_path}/empty.db")
    database.check()
    database.close()


def test_two_processes_may_migrate_at_once(postgres: PostgresServer, tmp_path: object) -> None:
    for url in (f"sqlite:///{tmp_path}/both.db", postgres.url(postgres.create_database())):
        errors: list[Exception] = []

        def run(url: str = url, errors: list[Exception] = errors) -> None:
            try:
                migrate(url)
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


def test_a_database_that_is_away_is_named_as_such(tmp_path: object) -> None:
    database = Database.open(StoreSettings(database_url="postgresql+psycopg://nobody@127.0.0.1:1/none"))
    with pytest.raises(StorageUnavailable):
        database.check()
    database.close()
