"""Bring the store to this version's schema: ``python -m jobs.store.migration``."""

from __future__ import annotations

from alembic import command
from sqlalchemy import text

from jobs.store.database import Database
from jobs.store.revisions import alembic_config
from settings.jobs import StoreSettings

_LOCK = 0x5C02E11E
"""Any number that no one else takes: whoever migrates holds PostgreSQL's advisory lock of this number."""


def migrate(url: str) -> None:
    """Create or upgrade the schema, in one transaction. Several processes may do this at once: one goes first."""
    database = Database.open(StoreSettings(database_url=url))
    try:
        with database.write() as connection:
            if not database.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            command.upgrade(alembic_config(connection), "head")
    finally:
        database.close()


if __name__ == "__main__":
    migrate(StoreSettings().database_url)
