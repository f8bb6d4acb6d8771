"""Connections of a store on SQLite."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL

from jobs.store.lists import FROM_HEX

BUSY_SECONDS = 15.0  # longest wait for SQLite's write lock, and for a connection of its pool
_LOCK_POLL_SECONDS = 0.01

BY_CODE_POINTS = "C"
"""The collation that orders texts as Python does. By default, PostgreSQL orders them by the rules of a language."""


def open_engine(url: URL) -> Engine:
    """Return the engine of a store. It connects at its first use, and fails then if there is no file."""
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, pool_timeout=BUSY_SECONDS, hide_parameters=True)
    if path := path_of(url):
        event.listen(engine, "do_connect", partial(_require_file, path))
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    return engine


def path_of(url: URL) -> Path | None:
    """Return the path of a SQLite file; None for a ``file:`` URI, whose path only SQLite can read."""
    return None if url.query.get("uri") or url.database is None else Path(url.database)


def _require_file(path: Path, *_: object) -> None:
    if not path.exists():  # SQLite would make it
        raise sqlite3.OperationalError("there is no such file")


def create_private(path: Path) -> None:
    """Create a database file and its folder for this user only, if they are missing: it holds inputs and secrets.

    SQLite gives the files that it makes beside a database the permissions of the database.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):  # SQLite says what is wrong when it opens the file
        os.close(os.open(path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600))


def _configure(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # the driver begins no transaction by itself: _begin does
    _use_write_ahead_log(connection)
    connection.create_collation(BY_CODE_POINTS, lambda one, other: (one > other) - (one < other))
    connection.create_function(FROM_HEX, 1, bytes.fromhex, deterministic=True)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    # This pragma does not wait for the lock by itself. Without the loop, it fails if several processes open a new file.
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            is_lock = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not is_lock or time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_POLL_SECONDS)
        else:
            return


def _begin(connection: Connection) -> None:
    # A deferred transaction that begins to write may fail at once, whatever the timeout. Writers begin as writers.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
