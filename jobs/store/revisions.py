"""The revision of the schema that a store has, and the one that this version needs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, column, inspect, select, table

ROOT = Path(__file__).resolve().parents[2]

# Alembic's own query is a new statement each time. SQLAlchemy would compile it for every probe of readiness, and would
# keep it in place of a statement that is used.
_VERSIONS = table("alembic_version", column("version_num"))
_REVISION = select(_VERSIONS.c.version_num)


def alembic_config(connection: Connection | None = None) -> Config:
    """Return the configuration of the migrations. With a connection they run in its transaction."""
    config = Config(str(ROOT / "alembic.ini"))
    config.attributes["connection"] = connection
    return config


@cache
def schema_head() -> str:
    """Return the revision that this version needs."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if head is None:
        raise RuntimeError("there are no migrations")
    return head


def known_revisions() -> frozenset[str]:
    """Return the revisions that this version knows: its own and the earlier ones."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions())


def schema_revision(connection: Connection) -> str | None:
    """Return the revision of a store; None if it was never migrated."""
    if not inspect(connection).has_table(_VERSIONS.name):
        return None
    found: str | None = connection.scalar(_REVISION)
    return found
