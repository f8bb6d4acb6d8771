"""Migration of a store to the schema of this version."""

from __future__ import annotations

from alembic import command
from alembic.util import CommandError
from sqlalchemy import text

from jobs.store.database import Database
from jobs.store.revisions import alembic_config

_LOCK = 0x5C02E11E
"""PostgreSQL's advisory lock of this number is held by whoever migrates. Nothing else uses the number."""


def migrate(database: Database) -> None:
    """Create or upgrade the schema in one transaction. Several processes may call this at once; they take turns.

    Raises ValueError for a schema that this version does not know, StorageUnavailable.
    """
    with database.write(slow=True) as tx:
        if not tx.is_sqlite:
            tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        try:
            command.upgrade(alembic_config(tx.connection), "head")
        except CommandError as error:
            raise ValueError(str(error)) from error
