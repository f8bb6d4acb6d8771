"""Migration of a store to the schema of this version."""

from __future__ import annotations

from alembic import command
from sqlalchemy import text

from jobs.store.database import Database
from jobs.store.revisions import alembic_config, known_revisions, schema_revision

_LOCK = 0x5C02E11E
"""PostgreSQL's advisory lock of this number is held by whoever migrates. Nothing else uses the number."""


class UnknownSchemaError(Exception):
    """A later version of the service has migrated the store."""


def migrate(database: Database) -> None:
    """Create or upgrade the schema in one transaction. Several processes may call this at once; they take turns.

    The file of a SQLite store is created if it is missing. Raises UnknownSchemaError, StorageUnavailable, OSError.
    """
    database.create_file()
    with database.write(slow=True) as tx:
        if not tx.is_sqlite:
            tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        found = schema_revision(tx.connection)
        if found is not None and found not in known_revisions():
            raise UnknownSchemaError(
                f"the database is at migration {found}, which this version does not know: a later version of Scoreline "
                "has migrated it. Run that version, or restore a backup from before its migration"
            )
        command.upgrade(alembic_config(tx.connection), "head")
