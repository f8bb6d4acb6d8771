"""The journal of a run: what is needed to go on after the process was stopped or killed.

It is a SQLite file beside the output, which exists as long as the run is not finished. It names the other files of the
run before they are created, and a run touches no file that its journal does not name. Rows are on the disk before the
journal counts them. If the output has more rows than that, they are removed on resuming.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.formats import foreign
from scoreline.runs.storing import remove_unfinished

JournalError = sqlite3.Error
"""What an open journal raises if it can't be written."""

_FORMAT = 2
"""Of the journal, which SQLite keeps as its user_version. The first one had no version."""

_NAME_CHARACTERS = 60
"""Of the output's name in that of a run."""

_SCHEMA = (
    "CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE jobs (
      key TEXT PRIMARY KEY,     -- the Idempotency-Key by which the job was submitted
      window INTEGER NOT NULL,  -- the window of rows that it is of
      job_id TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE attempts (
      base TEXT PRIMARY KEY,    -- what the keys of all attempts begin with
      window INTEGER NOT NULL,
      attempts INTEGER NOT NULL -- jobs that have ended without success
    ) WITHOUT ROWID""",
    """CREATE TABLE windows (
      window INTEGER PRIMARY KEY,
      digests BLOB NOT NULL     -- of the rows that were read for it, one behind the other
    )""",
    """CREATE TABLE errors (
      place INTEGER PRIMARY KEY, -- of the row in the output, counted from 0
      error TEXT NOT NULL        -- why its cells are empty, as JSON
    )""",
    f"PRAGMA user_version = {_FORMAT}",
)


@dataclass(frozen=True, slots=True)
class Written:
    """How far a run has got, and how many of its rows have which outcome."""

    windows: int = 0
    rows: int = 0
    state: int = 0  # of the output: see Sink
    too_long: int = 0  # rows whose cells are empty because the model does not take so many tokens
    empty: int = 0  # rows whose cells are empty because they have no text
    failed: int = 0  # rows whose cells are empty for another reason
    prompt_tokens: int = 0
    shared_tokens: int = 0  # those of them that did not have to be computed
    seconds: float = 0.0  # that it took, interruptions left out


class Journal:
    """An open journal. No other process can open it meanwhile."""

    def __init__(
        self,
        path: Path | None,
        what: dict[str, Any],
        files: Sequence[Path] = (),
        *,
        restart: bool = False,
        shared: tuple[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Open the journal of a run, or begin one.

        path: None: keep it in memory, because the run can't be resumed. what: what the run is about; a journal that is
        there must be about the same. files: those that the run is going to create in the same folder. restart: throw
        away a journal that is there, and the files that it names. shared: the name of a run of which other processes
        score parts, and what all jobs are asked, so that the same rows are the same jobs in all of them.

        Raises CommandError, also if another process has the journal open, and if one of the files is there without a
        journal that names it.
        """
        self._path = path
        self.shared = shared
        self.has_unnoted_jobs = False  # whether jobs may go on that this journal does not know
        was_there = path is not None and path.exists()
        try:
            # The rows of the input are compared with the journal in other threads, while this one waits.
            self._connection = sqlite3.connect(
                path or ":memory:", isolation_level=None, timeout=0, check_same_thread=False
            )
            try:
                self._open(what, files, restart=restart, was_there=was_there)
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise _in_use(path) from None
            raise _unusable(path, str(error)) from None

    def _open(self, what: dict[str, Any], files: Sequence[Path], *, restart: bool, was_there: bool) -> None:
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        with self._transaction():  # From here on, no other process can open it.
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            tables = [
                name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            if tables and "run" not in tables:
                raise _unusable(self._path, "another program has written it")
            before = self._stored() if tables else {}
        self._connection.execute("PRAGMA journal_mode = WAL")
        # A job that a power failure removes from the journal is found again by its Idempotency-Key.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if tables and restart:
            assert self._path is not None
            for name in before.get("files") or [file.name for file in files]:
                remove_unfinished(self._path.with_name(name))
        elif tables and version != _FORMAT:
            raise CommandError(
                f"another version of Scoreline has written {self._path}: finish the run with that version, or begin "
                "again with --restart",
                ExitCode.USAGE,
            )
        self.is_resumed = bool(tables) and not restart
        if self.is_resumed:
            self._check(before["what"], what)
        else:
            for file in files:
                if file.exists():
                    if not was_there and self._path is not None:
                        self.remove()
                    raise foreign(file)
            self._begin(tables, what, files, restart=restart)
        stored = self._stored()
        self.run_id: str = stored["id"]
        self.run_name: str = stored["name"]  # for its user
        self.written = Written(**stored["written"])
        self.replaces: bool = stored["replaces"]  # whether a finished output that is there may be replaced
        self.is_finishing: bool = stored["finishing"]  # whether all rows are written, and files are getting their names

    def _stored(self) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in self._connection.execute("SELECT name, value FROM run")}

    def _check(self, before: dict[str, Any], what: dict[str, Any]) -> None:
        if different := sorted(name for name in before.keys() | what.keys() if before.get(name) != what.get(name)):
            raise CommandError(
                f"{self._path} is the journal of a run with another {' and another '.join(different)}: "
                "run it to its end as it was begun, or begin again with --restart",
                ExitCode.USAGE,
            )

    def _begin(self, tables: Sequence[str], what: dict[str, Any], files: Sequence[Path], *, restart: bool) -> None:
        with self._transaction(durable=True):
            for table in tables:
                self._connection.execute(f"DROP TABLE {table}")
            for statement in _SCHEMA:
                self._connection.execute(statement)
            run_id = secrets.token_hex(8) if self.shared is None else _shared_id(*self.shared)
            self.note("id", run_id)
            self.note("name", _name_of(self._path, run_id) if self.shared is None else self.shared[0])
            self.note("what", what)
            self.note("files", [file.name for file in files])
            self.note("replaces", restart)
            self.note("finishing", False)
            self.note("written", asdict(Written()))

    @contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[None]:
        """Have all or nothing of what the block writes. durable: it outlives a power failure, too."""
        if durable:
            self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite has rolled it back by itself.
                self._connection.execute("ROLLBACK")
            raise
        finally:
            if durable:
                self._connection.execute("PRAGMA synchronous = NORMAL")

    @property
    def is_empty(self) -> bool:
        """Whether the run has done nothing yet that it could go on with."""
        is_begun = self.is_resumed or self.has_unnoted_jobs or self.is_finishing
        return not (is_begun or self.written.windows or self._found("SELECT key FROM jobs LIMIT 1"))

    def job(self, key: str) -> str | None:
        """Return the id of a job that was submitted by this key."""
        found: str | None = self._found("SELECT job_id FROM jobs WHERE key = ?", key)
        return found

    def add_job(self, key: str, window: int, job_id: str) -> None:
        """Note a job that was submitted."""
        self._connection.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (key, window, job_id))

    def attempt(self, base: str) -> int:
        """Return how many jobs for the same rows have ended without success."""
        return self._found("SELECT attempts FROM attempts WHERE base = ?", base) or 0

    def begin_attempt(self, base: str, key: str, window: int) -> None:
        """Forget the job of a key, which is gone or has failed: the same rows get another job, by another key."""
        attempts = self.attempt(base) + 1
        with self._transaction():
            self._connection.execute("DELETE FROM jobs WHERE key = ?", (key,))
            self._connection.execute("INSERT OR REPLACE INTO attempts VALUES (?, ?, ?)", (base, window, attempts))

    def remember(self, name: str, value: Any) -> Any:
        """Return what is stored under a name; the first time, store the value."""
        if (stored := self.recall(name)) is not None:
            return stored
        self.note(name, value)
        return value

    def recall(self, name: str) -> Any:
        """Return what is stored under a name, or None."""
        stored = self._found("SELECT value FROM run WHERE name = ?", name)
        return None if stored is None else json.loads(stored)

    def _found(self, query: str, *values: object) -> Any:
        """Return the one value that a query finds; None if it finds none."""
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else row[0]

    def count_window(self, written: Written, digests: bytes, errors: Mapping[int, dict[str, Any]]) -> None:
        """Note that another window is written.

        digests: of its rows. errors: why cells of its rows are empty, by the place of the row in the output.
        """
        with self._transaction():
            self.note("written", asdict(written))
            self._connection.execute("INSERT INTO windows VALUES (?, ?)", (written.windows - 1, digests))
            values = [(place, json.dumps(error)) for place, error in errors.items()]
            self._connection.executemany("INSERT INTO errors VALUES (?, ?)", values)
            for table in ("jobs", "attempts"):
                self._connection.execute(f"DELETE FROM {table} WHERE window < ?", (written.windows,))
        self.written = written

    def digests(self) -> Iterator[bytes]:
        """Yield the digests of the rows that are written, those of a window at a time."""
        for (digests,) in self._connection.execute("SELECT digests FROM windows ORDER BY window"):
            yield digests

    def errors(self, most: int = -1) -> Iterator[dict[str, Any]]:
        """Yield why cells are empty, in the order of the rows. most: of so many rows; -1: of all."""
        found = self._connection.execute("SELECT error FROM errors ORDER BY place LIMIT ?", (most,))
        for (error,) in found:
            yield json.loads(error)

    def begin_finishing(self) -> None:
        """Note that all rows are written. What is left to do can be done again, whenever the process is killed."""
        with self._transaction(durable=True):
            self.note("finishing", True)
        self.is_finishing = True

    def add_seconds(self, seconds: float) -> None:
        """Note that the run has taken so long until now, if the disk has room for that."""
        self.written = replace(self.written, seconds=seconds)
        with suppress(sqlite3.Error):  # Why a run ends must not be hidden by what it only tells the user.
            self.note("written", asdict(self.written))

    def note(self, name: str, value: Any) -> None:
        """Store a value under a name."""
        self._connection.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (name, json.dumps(value)))

    def close(self) -> None:
        """Close the journal and keep it."""
        self._connection.close()

    def remove(self) -> None:
        """Close and remove the journal of a run that is finished."""
        self._connection.close()
        if self._path is not None:
            for ending in ("", "-wal", "-shm", "-journal"):  # The others mean nothing without the first.
                self._path.with_name(self._path.name + ending).unlink(missing_ok=True)


def _name_of(path: Path | None, run_id: str) -> str:
    """Return a name for a run that tells it from all others, and that a shell takes as it is."""
    output = "stdout" if path is None else path.stem
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', output)[-_NAME_CHARACTERS:].lstrip('-')}-{run_id[:8]}"


def _shared_id(name: str, asked: Mapping[str, Any]) -> str:
    """Return what the keys of a run begin with in every process that takes part in it and asks the same."""
    content = json.dumps([name, asked], sort_keys=True, default=str).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def name_of_earlier_run(path: Path | None) -> str | None:
    """Return the name of the run whose journal is there, if it has one. Raises CommandError if it is in use."""
    if path is None or not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=0)) as connection:
            row = connection.execute("SELECT value FROM run WHERE name = 'name'").fetchone()
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise _in_use(path) from None
        return None  # it has no such table
    except sqlite3.DatabaseError:
        return None  # it is no journal
    return None if row is None else str(json.loads(row[0]))


def _in_use(path: Path | None) -> CommandError:
    return CommandError(f"another process is writing: {path} is in use")


def _unusable(path: Path | None, why: str) -> CommandError:
    return CommandError(
        f"{path} can't be used as the journal of this run: {why}; move it away or remove it to begin again",
        ExitCode.USAGE,
    )
