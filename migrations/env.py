"""Runs migrations on the connection that Alembic is given, or else on the store that the settings name."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

import jobs.file_batches.tables
import jobs.files.tables
import jobs.webhooks.tables  # noqa: F401 (each adds its tables to the metadata)
from jobs.store.database import Database
from jobs.store.tables import metadata  # with the tables of all modules that are imported above
from settings.store import StoreSettings


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
        compare_type=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with Database.open(StoreSettings()).write(slow=True) as own:
        run(own.connection)
