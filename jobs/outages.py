"""Explain in one line why a process can't use its database, and what to do about it; watch its outages."""

from __future__ import annotations

import re
import threading
import time

import structlog
from sqlalchemy.exc import DBAPIError

from settings.errors.endings import in_one_line
from settings.errors.mistakes import quote, setting_error, variable_of
from settings.store import StoreSettings

SETTLED_SECONDS = 15.0
"""When nothing has failed for so long, an outage is over. Every process sweeps, and every worker says that it is live,
two times within this time."""

LATER_SCHEMA = "a later version of Scoreline has migrated the database; run that version here, too"
"""What a process logs that serves on with such a database."""

_MIGRATE = "run `scoreline migrate`"
_SQLITE = {
    "there is no such file": f"{_MIGRATE} to make it, or name the database that you mean; `--data DIR` is the one of "
    "`scoreline up --data DIR`",
    "readonly database": "let this user write the file and its folder",
    "file is not a database": "name a file that SQLite has written",
    "disk is full|No space left|disk I/O error": "free some space on its disk",
    "locked": "another process is writing to it; try again later",
    "unable to open|Permission denied|Read-only|No such file|Not a directory|File exists": "name a file in a folder "
    "that this user may write",
}
_POSTGRESQL = {
    "Connection refused|No such file": "start PostgreSQL there, or correct the host and the port",
    "resolve host|translate host name": "correct the name of the host",
    "password": "correct the user and the password, which may also be in PGPASSWORD",
    'database "[^"]*" does not exist': "make this database, or correct its name",
    'role "[^"]*" does not exist': "make this user, or correct its name",
    "pg_hba.conf": "allow this host and this user in pg_hba.conf, or use TLS with ?sslmode=require",
    "ssl|certificate": "correct sslmode and the certificates that it needs",
    "timeout|timed out|does not answer|unreachable|No route": "check the network, and whether the server is overloaded",
    "closed the connection|terminating connection": "it was stopped, or has ended this session; its log says why",
    "read-only": "name the primary if this is a standby; if its disk is full, free some space",
    "already exists": "its tables are of a later version than its migration says, as after a dump was restored over "
    "them: restore it into an empty database (docs/backup.md)",
    "permission denied|must be owner": "let this user make and change tables in this database",
    "too many clients|connection slots": "allow more connections in PostgreSQL, or run fewer processes",
    "disk|No space left": "free some space on the disk of PostgreSQL",
}
"""What to do, by a pattern of the message. The first one that is found counts."""

log = structlog.stdlib.get_logger("database")

_QUESTION = re.compile(r"\s*Is the server running[^?]*\?")  # of libpq, on a line of its own


def explain_outage(error: Exception, settings: StoreSettings) -> str:
    """Return why the database of these settings can't be used, without its password, and what to do about it."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    said = _QUESTION.sub("", in_one_line(cause))
    known = _SQLITE if settings.database_url.startswith("sqlite") else _POSTGRESQL
    # What was refused for another reason than an outage would be refused again.
    unknown = "a repetition does not help; the log of the database may say more"
    unknown = unknown if isinstance(error, DBAPIError) else "try again later"
    advice = next((do for found, do in known.items() if re.search(found, said, re.IGNORECASE)), unknown)
    advice = "" if _MIGRATE in said else advice
    told = f"{said}; {advice}" if advice else said
    if "database_url" not in settings.model_fields_set:
        return f"{variable_of('database_url')} is unset, which means {quote(settings.database_url)}: {told}"
    return str(setting_error("database_url", settings.database_url, told))


class Outages:
    """What a process has seen of the outages of its database. Safe to use from threads.

    It logs each cause of an outage once, and its end. Single reads may succeed in an outage, for example if only writes
    are refused, so an outage ends when nothing has failed for :data:`SETTLED_SECONDS`.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.is_logged = True
        self._settings = settings
        self._lock = threading.Lock()
        self._causes: set[str] = set()  # that are logged; empty while there is no outage
        self._began_at = self._failed_at = 0.0
        self._unwritten_since: float | None = None  # the first failure since anything was written
        self._gap = (0.0, -SETTLED_SECONDS)  # the last time in which nothing could be written: from, until

    @property
    def is_away(self) -> bool:
        """Whether the database has failed since this process last wrote to it."""
        return self._unwritten_since is not None

    def unwritten_seconds(self) -> float:
        """Return for how long no worker could say that it is live, if that was so a moment ago; otherwise 0."""
        with self._lock:
            now = time.monotonic()
            if self._unwritten_since is not None:
                return now - self._unwritten_since
            began_at, ended_at = self._gap
            return now - began_at if now - ended_at < SETTLED_SECONDS else 0.0

    def failed(self, error: Exception) -> None:
        """Note that the database could not be used, because of ``error``."""
        with self._lock:
            self._failed_at = time.monotonic()
            if self._unwritten_since is None:
                self._unwritten_since = self._failed_at
            if not self._causes:
                self._began_at = self._failed_at
            driver_error = getattr(error.__cause__, "orig", error.__cause__)
            cause = getattr(driver_error, "sqlstate", None) or in_one_line(error)
            is_new = cause not in self._causes
            self._causes.add(cause)
        if is_new and self.is_logged:
            log.warning("the database is away", reason=explain_outage(error, self._settings))

    def succeeded(self, *, wrote: bool) -> None:
        """Note that the database was used. wrote: whether it could be written to."""
        if not self._causes and self._unwritten_since is None:  # as nearly always
            return
        with self._lock:
            now = time.monotonic()
            if wrote and self._unwritten_since is not None:
                self._gap, self._unwritten_since = (self._unwritten_since, now), None
            is_over = bool(self._causes) and now - self._failed_at >= SETTLED_SECONDS
            if is_over:
                self._causes.clear()
        if is_over and self.is_logged:
            log.info("the database is back", lasted_seconds=round(self._failed_at - self._began_at, 1))
