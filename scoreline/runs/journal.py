"""The journal of a run: what is needed to go on after the process was stopped or killed.

It is a SQLite file beside the output, which exists as long as the run is not finished. Rows are on the disk before the
journal counts them. If the output has more rows than that, they are removed on resuming.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scoreline.exit_codes import CommandError, ExitCode

JournalError = sqlite3.Error
"""What an open journal raises if it can't be written."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (
  key TEXT PRIMARY KEY,     -- the Idempotency-Key by which the job was submitted
  window INTEGER NOT NULL,  -- the window of rows that it is of
  job_id TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
  base TEXT PRIMARY KEY,    -- what the keys of all attempts begin with
  window INTEGER NOT NULL,
  attempts INTEGER NOT NULL -- jobs that have ended without success
) WITHOUT ROWID;
"""
_EMPTIED = "DROP TABLE IF EXISTS run; DROP TABLE IF EXISTS jobs; DROP TABLE IF EXISTS attempts;"


@dataclass(frozen=True, slots=True)
class Written:
    """How far a run has got, and how many of its rows have which outcome."""

    windows: int = 0
    rows: int = 0
    state: int = 0  # of the output: see Sink
    digest: str = ""  # of the rows that were read for it
    too_long: int = 0  # rows whose cells are empty because the model does not take so many tokens
    failed: int = 0  # rows whose cells are empty for another reason
    prompt_tokens: int = 0
    shared_tokens: int = 0  # those of them that did not have to be computed
    seconds: float = 0.0  # that it took, interruptions left out


class Journal:
    """An open journal. No other process can open it meanwhile."""

    def __init__(self, path: Path | None, what: dict[str, Any], *, restart: bool = False) -> None:
        """Open the journal of a run, or begin one.

        path: None: keep it in memory, because the run can't be resumed. what: what the run is about; a journal that is
        there must be about the same. restart: throw away what is in a journal that is there. Raises CommandError, also
        if another process has the journal open.
        """
        self._path = path
        self._jobs: dict[str, str] = {}  # the id of each job by its key
        self._attempts: dict[str, int] = {}
        try:
            self._open(path, restart=restart)
        except sqlite3.DatabaseError as error:
            if path is None or not restart or isinstance(error, sqlite3.OperationalError):
                raise _unusable(path, error) from None
            remove_journal(path)  # It is no journal, so no process has locked it.
            self._open(path, restart=restart)
        try:
            self._begin_or_resume(what)
        except sqlite3.Error as error:
            raise _unusable(path, error) from None

    def _open(self, path: Path | None, *, restart: bool) -> None:
        try:
            self._connection = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=0)
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA journal_mode = WAL")
            # A job that a power failure removes from the journal is found again by its Idempotency-Key.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            emptied = _EMPTIED if restart else ""
            self._connection.executescript(f"BEGIN IMMEDIATE; {emptied} {_SCHEMA} COMMIT;")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise CommandError(f"another process is writing: {path} is in use") from None
            raise

    def _begin_or_resume(self, what: dict[str, Any]) -> None:
        stored = {name: json.loads(value) for name, value in self._connection.execute("SELECT name, value FROM run")}
        self.is_resumed = bool(stored)
        if not stored:
            stored = {"id": secrets.token_hex(8), "what": what, "written": asdict(Written())}
            for name, value in stored.items():
                self._store(name, value)
        elif stored["what"] != what:
            before = stored["what"]
            different = sorted(name for name in before.keys() | what.keys() if before.get(name) != what.get(name))
            raise CommandError(
                f"{self._path} is the journal of a run with another {' and another '.join(different)}: "
                "run it to its end as it was begun, or begin again with --restart",
                ExitCode.USAGE,
            )
        self.run_id: str = stored["id"]
        self.written = Written(**stored["written"])
        self._read_jobs()

    def _read_jobs(self) -> None:
        self._jobs = dict(self._connection.execute("SELECT key, job_id FROM jobs"))
        self._attempts = dict(self._connection.execute("SELECT base, attempts FROM attempts"))

    @property
    def is_empty(self) -> bool:
        """Whether the run has done nothing yet that it could go on with."""
        return not (self.written.windows or self._jobs)

    def job(self, key: str) -> str | None:
        """Return the id of a job that was submitted by this key."""
        return self._jobs.get(key)

    def add_job(self, key: str, window: int, job_id: str) -> None:
        """Note a job that was submitted."""
        if self._jobs.get(key) != job_id:
            self._connection.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (key, window, job_id))
            self._jobs[key] = job_id

    def attempt(self, base: str) -> int:
        """Return how many jobs for the same rows have ended without success."""
        return self._attempts.get(base, 0)

    def begin_attempt(self, base: str, key: str, window: int) -> None:
        """Forget the job of a key, which is gone or has failed: the same rows get another job, by another key."""
        self._attempts[base] = self.attempt(base) + 1
        self._connection.execute("DELETE FROM jobs WHERE key = ?", (key,))
        values = (base, window, self._attempts[base])
        self._connection.execute("INSERT OR REPLACE INTO attempts VALUES (?, ?, ?)", values)
        self._jobs.pop(key, None)

    def remember(self, name: str, value: Any) -> Any:
        """Return what is stored under a name; the first time, store the value."""
        row = self._connection.execute("SELECT value FROM run WHERE name = ?", (name,)).fetchone()
        if row is not None:
            return json.loads(row[0])
        self._store(name, value)
        return value

    def knows(self, name: str) -> bool:
        """Return whether something is stored under a name."""
        return self._connection.execute("SELECT 1 FROM run WHERE name = ?", (name,)).fetchone() is not None

    def count_window(self, written: Written) -> None:
        """Note that another window is written."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._store("written", asdict(written))
        for table in ("jobs", "attempts"):
            self._connection.execute(f"DELETE FROM {table} WHERE window < ?", (written.windows,))
        self._connection.execute("COMMIT")
        self._read_jobs()
        self.written = written

    def add_seconds(self, seconds: float) -> None:
        """Note that the run has taken so long until now, if the disk has room for that."""
        self.written = replace(self.written, seconds=seconds)
        with suppress(sqlite3.Error):  # Why a run ends must not be hidden by what it only tells the user.
            self._store("written", asdict(self.written))

    def _store(self, name: str, value: Any) -> None:
        self._connection.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (name, json.dumps(value)))

    def close(self) -> None:
        """Close the journal and keep it."""
        self._connection.close()

    def remove(self) -> None:
        """Close and remove the journal of a run that is finished."""
        self._connection.close()
        if self._path is not None:
            remove_journal(self._path)


def remove_journal(path: Path) -> None:
    """Remove the files of a journal."""
    for ending in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _unusable(path: Path | None, error: Exception) -> CommandError:
    return CommandError(f"the journal {path} can't be used: {error}; --restart begins again", ExitCode.USAGE)
