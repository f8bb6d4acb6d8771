"""The revision of the schema that a store has, and the one that this version needs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table

ROOT = Path(__file__).resolve().parents[2]

# Alembic's own query is a new statement each time. SQLAlchemy would compile it for every probe of readiness, and would
# keep it in place of a statement that is used.
_VERSIONS = table("alembic_version", column("version_num"))
_REVISION = select(_VERSIONS.c.version_num)


@cache
def known_revisions() -> frozenset[str]:
    """Return the revisions that this version knows: its own and earlier ones, down to that of version 0.2.0.

    They are the beginnings of the names of the files, in their order. Every process looks at them, and only a migration
    needs Alembic, which takes a tenth of a second to import.
    """
    return frozenset(path.name.partition("_")[0] for path in (ROOT / "migrations" / "versions").glob("[0-9]*_*.py"))


def schema_head() -> str:
    """Return the revision that this version needs."""
    return max(known_revisions())


def is_too_old(revision: str) -> bool:
    """Return whether a revision is of a version before 0.2.0, which this version can't migrate."""
    return revision.isdigit() and revision < min(known_revisions())


class UnknownSchemaError(Exception):
    """A later version of the service has migrated the store, or one that is too old."""


TOO_OLD = "the database is of a version before 0.2.0: migrate it with version 0.2.0 first, and then with this one"


def schema_revision(connection: Connection) -> str | None:
    """Return the revision of a store; None if it was never migrated."""
    if not inspect(connection).has_table(_VERSIONS.name):
        return None
    found: str | None = connection.scalar(_REVISION)
    return found
