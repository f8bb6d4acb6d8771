"""The commands of docs/backup.md, as they are written there."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic import command

from jobs.outages import explain_outage
from jobs.store.database import Database, StoreError
from jobs.store.migration import alembic_config, migrate
from jobs.store.revisions import schema_head
from scoreline.data_directory import DataDirectory
from settings.store import StoreSettings
from tests.services import PostgresServer, find_binary
from tests.stores import migrate_store

ROOT = Path(__file__).parents[2]
BLOCKS: list[str] = re.findall(r"^```\n(.*?)^```$", (ROOT / "docs" / "backup.md").read_text(), re.MULTILINE | re.DOTALL)
OLD = "0016"
"""A revision without the table of changes, which the next one makes."""

DOCKER = """#!/bin/sh
case "$2" in
    exec) shift 4; exec "$@" ;;
    run) cd {root} && exec {python} -m operations.migrate ;;
    *) ;;
esac
"""
"""Stands for Docker Compose: it executes commands of containers here."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of these tests alone, whose databases have the names that the page has."""
    server = PostgresServer()
    yield server
    server.close()


def only_block(word: str, *others: str) -> str:
    (found,) = [block for block in BLOCKS if all(one in block for one in (word, *others))]
    return found


def execute(block: str, server: PostgresServer, folder: Path) -> None:
    """Execute a block of the page in a folder."""
    docker = folder / "bin" / "docker"
    docker.parent.mkdir(exist_ok=True)
    docker.write_text(DOCKER.format(root=ROOT, python=sys.executable))
    docker.chmod(0o755)
    programs = [str(docker.parent), str(Path(find_binary("pg_dump")).parent), os.environ["PATH"]]
    variables = {
        "PATH": os.pathsep.join(programs),
        "PGHOST": server.address,
        "PGPORT": str(server.port),
        "SCORELINE_DATABASE_URL": server.url("scoreline"),
    }
    script = "set -e; umask 022\n" + block.replace("HOST", server.address)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def migrate_to(url: str, revision: str) -> None:
    with closing(Database.open(StoreSettings(database_url=url))) as database, database.write() as tx:
        command.upgrade(alembic_config(tx.connection), revision)


def add_tenant(server: PostgresServer, database: str) -> None:
    with psycopg.connect(server.url(database).replace("+psycopg", "")) as connection:
        connection.execute("INSERT INTO tenants (name, created_at) VALUES ('acme', 0)")


def content(server: PostgresServer, database: str) -> tuple[set[str], str]:
    with psycopg.connect(server.url(database).replace("+psycopg", "")) as connection:
        tenants = {name for (name,) in connection.execute("SELECT name FROM tenants").fetchall()}
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    return tenants, revision[0]


@pytest.mark.parametrize(("dumped", "found"), [(OLD, "head"), pytest.param("head", OLD, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["docker compose exec", pytest.param("--host=HOST", marks=pytest.mark.slow)])
def test_a_dump_replaces_a_database_of_another_version(
    way: str, dumped: str, found: str, server: PostgresServer, tmp_path: Path
) -> None:
    for name in ("scoreline", "scoreline_restored"):
        server.drop_database(name)
    server.create_database(name="scoreline")
    migrate_to(server.url("scoreline"), dumped)
    add_tenant(server, "scoreline")
    execute(only_block("pg_dump", way), server, tmp_path)
    dump = tmp_path / "scoreline.dump"
    assert stat.S_IMODE(dump.stat().st_mode) == 0o600
    server.drop_database("scoreline")
    server.create_database(name="scoreline")
    migrate_to(server.url("scoreline"), found)

    execute(only_block("createdb", way), server, tmp_path)
    restored = "scoreline" if way.startswith("docker") else "scoreline_restored"
    migrate_store(server.url(restored))
    tenants, revision = content(server, restored)
    assert "acme" in tenants
    assert revision == schema_head()


def test_a_copy_of_sqlite_and_what_is_beside_it_can_be_read_by_their_owner_alone(
    server: PostgresServer, tmp_path: Path
) -> None:
    folder = tmp_path / ".scoreline"
    folder.mkdir()
    DataDirectory(folder).add_to({})
    (folder / "calibrations" / "one.json").write_text("{}")
    migrate_store(f"sqlite:///{folder}/scoreline.db")
    execute(only_block("sqlite3"), server, tmp_path)
    copy, others = tmp_path / "backup.db", tmp_path / "backup.tar"
    assert [stat.S_IMODE(file.stat().st_mode) for file in (copy, others)] == [0o600, 0o600]
    with tarfile.open(others) as opened:
        assert {"receipt-keys.pem", "calibrations/one.json"} <= set(opened.getnames())
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(schema_head(),)]


def test_a_migration_that_finds_tables_of_a_later_version_says_what_to_do(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.create_database())
    migrate_store(url)
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = %s", [OLD])
    settings = StoreSettings(database_url=url)
    with closing(Database.open(settings)) as database, pytest.raises(StoreError) as raised:
        migrate(database)
    said = explain_outage(raised.value, settings)
    assert "restore it into an empty database" in said
    assert "later" not in said.partition("its tables are of a later version")[2]
