"""Explain in one line why a process can't use its database, and what to do about it."""

from __future__ import annotations

import re

from sqlalchemy.exc import DBAPIError

from settings.errors.endings import in_one_line
from settings.errors.mistakes import quote, setting_error, variable_of
from settings.store import StoreSettings

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
    "permission denied|must be owner": "let this user make and change tables in this database",
    "too many clients|connection slots": "allow more connections in PostgreSQL, or run fewer processes",
    "disk|No space left": "free some space on the disk of PostgreSQL",
}
"""What to do, by a pattern of the message. The first one that is found counts."""

_QUESTION = re.compile(r"\s*Is the server running[^?]*\?")  # of libpq, on a line of its own


def explain_outage(error: Exception, settings: StoreSettings) -> str:
    """Return why the database of these settings can't be used, without its password, and what to do about it."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    said = _QUESTION.sub("", in_one_line(cause))
    known = _SQLITE if settings.database_url.startswith("sqlite") else _POSTGRESQL
    advice = next((do for found, do in known.items() if re.search(found, said, re.IGNORECASE)), "try again later")
    advice = "" if _MIGRATE in said else advice
    told = f"{said}; {advice}" if advice else said
    if "database_url" not in settings.model_fields_set:
        return f"{variable_of('database_url')} is unset, which means {quote(settings.database_url)}: {told}"
    return str(setting_error("database_url", settings.database_url, told))
