"""Stores for tests."""

from __future__ import annotations

from contextlib import closing

from jobs.store.database import Database
from jobs.store.migration import migrate
from settings.jobs import StoreSettings


def migrate_store(url: str) -> None:
    """Bring the store at a URL to the newest schema, and leave no connection to it open."""
    with closing(Database.open(StoreSettings(database_url=url))) as database:
        migrate(database)
