"""What a command on a database says of one that it can't use: one line with the variable, the URL, and what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from jobs.outages import explain_outage
from jobs.store.database import Database, StorageUnavailable
from jobs.store.migration import migrate
from jobs.store.revisions import schema_head
from operations.command import run_on_store
from operations.migrate import bring_up_to_date
from settings.errors.endings import Ending
from settings.errors.mistakes import variable_of
from settings.store import StoreSettings
from tests.services import PostgresServer, free_port


def outcome(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, migrates: bool = False
) -> tuple[int, str]:
    """The exit code, and the line, of a command on the database of this URL."""

    def act(database: Database) -> int:
        if migrates:
            migrate(database)
        return Ending.DONE

    monkeypatch.setenv("SCORELINE_DATABASE_URL", url)
    code = run_on_store(act, check_schema=not migrates)
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith("scoreline: SCORELINE_DATABASE_URL is '")
    assert "s3cret" not in line
    return code, line


@pytest.mark.parametrize(
    "url",
    [
        "no url",
        "mysql://user:s3cret@host/name",
        "postgresql+asyncpg://user:s3cret@host/name",
        "postgresql+none://user:s3cret@host/name",
        "postgresql+psycopg://user:s3cret@host:port/name",
        "sqlite://",
        "sqlite:///:memory:",
        "",
    ],
)
def test_a_url_that_names_no_usable_database(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCORELINE_DATABASE_URL", url)
    assert run_on_store(lambda _: Ending.DONE) == Ending.MISCONFIGURED
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("scoreline: SCORELINE_DATABASE_URL is ")
    assert ": it must " in line
    assert "s3cret" not in line


@pytest.mark.parametrize(
    ("place", "options", "says"),
    [
        ("user:s3cret@127.0.0.1:{closed}/name", "", "start PostgreSQL there, or correct the host and the port"),
        ("user:s3cret@no-such-host.invalid/name", "", "correct the name of the host"),
        ("scoreline:s3cret@127.0.0.1:{port}/no_such_database", "", "make this database, or correct its name"),
        ("no_such_user:s3cret@127.0.0.1:{port}/postgres", "", "make this user, or correct its name"),
        ("scoreline:s3cret@127.0.0.1:{port}/postgres", "?sslmode=require", "correct sslmode and the certificates"),
        ("scoreline:s3cret@127.0.0.1:{port}/postgres", "?sslmode=sometimes", "correct sslmode and the certificates"),
        ("scoreline:s3cret@127.0.0.1:{port}/postgres", "?sslmode=verify-full&sslrootcert=/no.pem", "the certificates"),
        (
            "scoreline:s3cret@127.0.0.1:{port}/postgres",
            "",
            "the database has no tables of this service: run `scoreline",
        ),
        ("user:s3cret@/name?host=/nowhere/at/all", "", "start PostgreSQL there, or correct the host"),
    ],
)
def test_a_postgresql_that_can_not_be_used(
    place: str,
    options: str,
    says: str,
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = "postgresql+psycopg://" + place.format(port=postgres.port, closed=free_port()) + options
    code, line = outcome(url, monkeypatch, capsys)
    assert (code, says in line) == (Ending.UNAVAILABLE, True), line


def test_an_option_that_the_driver_does_not_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = outcome("postgresql+psycopg://user:s3cret@host/name?sslmod=require", monkeypatch, capsys)
    assert (code, 'invalid connection option "sslmod"' in line) == (Ending.MISCONFIGURED, True), line


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            'connection failed: FATAL:  password authentication failed for user "scoreline"',
            "correct the user and the pass",
        ),
        ("connection failed: no pg_hba.conf entry for host", "allow this host and this user in pg_hba.conf"),
        ("permission denied for schema public", "let this user make and change tables"),
        ("FATAL: sorry, too many clients already", "allow more connections in PostgreSQL"),
        ("connection timeout expired", "check the network"),
        ("database or disk is full", "free some space on its disk"),
        ("attempt to write a readonly database", "let this user write the file and its folder"),
        ("something that nobody has seen", "try again later"),
    ],
)
def test_errors_of_a_database_end_with_what_to_do(error: str, says: str) -> None:
    url = "sqlite:///a.db" if "database" in error else "postgresql+psycopg://user:s3cret@host/name"
    settings = StoreSettings(database_url=url)
    said = explain_outage(StorageUnavailable(f"{error}\nIs the server running\nthere?"), settings)
    assert says in said
    assert "\n" not in said
    assert "s3cret" not in said


def test_a_sqlite_file_that_can_not_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.write_text("no database, but a text that is long enough to be taken for one\n" * 20)
    empty = tmp_path / "empty.db"
    sqlite3.connect(empty).close()
    empty.touch()
    for path, migrates, code, says in (
        (tmp_path / "absent.db", False, Ending.UNAVAILABLE, "there is no such file; run `scoreline migrate`"),
        (tmp_path / "no" / "folder" / "absent.db", False, Ending.UNAVAILABLE, "there is no such file"),
        (empty, False, Ending.UNAVAILABLE, "the database has no tables of this service: run `scoreline migrate`"),
        (other, False, Ending.UNAVAILABLE, "name a file that SQLite has written"),
        (other, True, Ending.UNAVAILABLE, "name a file that SQLite has written"),
        (tmp_path, True, Ending.UNAVAILABLE, "name a file in a folder that this user may write"),
        (Path("/proc/nowhere/a.db"), True, Ending.FAILED, "name a file in a folder that this user may write"),
        (other / "a.db", True, Ending.FAILED, "name a file in a folder that this user may write"),
    ):
        found, line = outcome(f"sqlite:///{path}", monkeypatch, capsys, migrates=migrates)
        assert (found, says in line) == (code, True), line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.db", "other"]


def test_a_database_of_an_earlier_or_a_later_version(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    database = Database.open(StoreSettings(database_url=sqlite_url))
    with database.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '0015'"))
    code, line = outcome(sqlite_url, monkeypatch, capsys)
    assert code == Ending.UNAVAILABLE
    assert "the database is at migration 0015 and this version needs" in line
    assert line.endswith("run `scoreline migrate`")
    with database.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    assert run_on_store(bring_up_to_date, check_schema=False) == Ending.MISCONFIGURED
    assert "a later version of Scoreline has migrated it" in capsys.readouterr().err


def test_a_misspelt_variable_is_named_by_every_command(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCORELINE_DATABASE_URL", sqlite_url)
    misspelt = variable_of("lease_second")
    monkeypatch.setenv(misspelt, "5")
    assert run_on_store(lambda _: Ending.DONE) == Ending.DONE
    assert capsys.readouterr().err == (
        f"scoreline: warning: {misspelt} is no setting and is ignored; is it SCORELINE_LEASE_SECONDS?\n"
    )


def test_a_migration_says_from_where_to_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCORELINE_DATABASE_URL", f"sqlite:///{tmp_path / 'new.db'}")
    head = schema_head()
    for said in (f"the schema went from nothing to migration {head}", f"the schema is at migration {head} already"):
        assert run_on_store(bring_up_to_date, check_schema=False) == Ending.DONE
        assert capsys.readouterr().out == f"{said}\n"
