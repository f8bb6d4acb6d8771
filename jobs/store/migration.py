"""Migration of a store to the schema of this version."""

from __future__ import annotations

import time
from typing import NamedTuple

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from jobs.store.database import Database, DeadlockError, LockedError, StorageUnavailable
from jobs.store.revisions import ROOT, TOO_OLD, UnknownSchemaError, is_too_old, known_revisions, schema_revision

_LOCK = 0x5C02E11E
"""PostgreSQL's advisory lock of this number is held by whoever migrates. Nothing else uses the number."""

LOCK_SECONDS = 3.0
"""How long a migration waits for a lock that another session holds. Everybody else waits behind it for as long."""

PAUSE_SECONDS = 3.0
"""How long a migration that did not get a lock leaves the tables to the others before it begins again."""


class Migrated(NamedTuple):
    """From which revision of the schema to which a migration went. None: there was no schema."""

    before: str | None
    after: str | None


def alembic_config(connection: Connection | None = None) -> Config:
    """Return the configuration of the migrations. With a connection they run in its transaction."""
    config = Config(str(ROOT / "alembic.ini"))
    config.attributes["connection"] = connection
    return config


def migrate(database: Database) -> Migrated:
    """Create or upgrade the schema in one transaction. Several processes may call this at once; they take turns.

    A change of a table waits for all who use the table, such as a backup, and all others wait behind it. So it waits
    for a moment only, and the migration begins again, until ``long_statement_seconds`` have passed. It also begins
    again if it and others wait for each other. The file of a SQLite store is created if it is missing. Raises
    UnknownSchemaError, StorageUnavailable, OSError.
    """
    database.create_file()
    most = database.settings.long_statement_seconds
    deadline = time.monotonic() + most
    while True:
        try:
            return _migrate(database)
        except (LockedError, DeadlockError) as error:
            if time.monotonic() + PAUSE_SECONDS > deadline:
                message = (
                    f"a backup, or another session, has kept a table locked for {most:g} s, so nothing was migrated"
                )
                raise StorageUnavailable(message) from error
            time.sleep(PAUSE_SECONDS)


def _migrate(database: Database) -> Migrated:
    with database.write(slow=True) as tx:
        if not tx.is_sqlite:
            tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            # From here on: nobody waits behind the lock above but other migrations.
            tx.execute(text(f"SET LOCAL lock_timeout TO '{round(1000 * LOCK_SECONDS)}ms'"))
        found = schema_revision(tx.connection)
        if found is not None and is_too_old(found):
            raise UnknownSchemaError(TOO_OLD)
        if found is not None and found not in known_revisions():
            raise UnknownSchemaError(
                f"the database is at migration {found}, which this version does not know: a later version of Scoreline "
                "has migrated it. Run that version, or restore a backup from before its migration"
            )
        command.upgrade(alembic_config(tx.connection), "head")
        return Migrated(found, schema_revision(tx.connection))
