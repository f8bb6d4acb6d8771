"""How the endpoints of webhooks fare: one that fails for days, or says that it is gone, is disabled.

An endpoint is a URL of a tenant. It has a row while it fails; a success takes the row away, and with it the disabling.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, select, update

from jobs.store.database import Database
from jobs.webhooks.tables import webhook_endpoints

FORGET_FAILURES_SECONDS = 86_400.0
"""An endpoint that was not seen to fail for so long, beyond the longest pause between two attempts, starts afresh."""
FORGET_DISABLED_SECONDS = 90 * 86_400.0
"""A disabled endpoint to which nothing was sent for so long is tried again when there is something."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint that fails. Times are Unix seconds; disabled_at: None while it is still tried."""

    failing_since: float
    disabled_at: float | None


def read_endpoint(connection: Connection, tenant: str, url: str) -> Endpoint | None:
    """An endpoint as it stands; None of one that does not fail."""
    row = connection.execute(select(webhook_endpoints).where(_is(tenant, url))).one_or_none()
    return None if row is None else Endpoint(row.failing_since, row.disabled_at)


def find_endpoint(db: Database, tenant: str, url: str) -> Endpoint | None:
    """:func:`read_endpoint` in a transaction of its own. Raises StorageUnavailable."""
    with db.read() as connection:
        return read_endpoint(connection, tenant, url)


def note_success(connection: Connection, tenant: str, url: str) -> None:
    """An endpoint took a delivery: whatever was held against it is forgotten."""
    connection.execute(delete(webhook_endpoints).where(_is(tenant, url)))


def note_failure(
    connection: Connection,
    db: Database,
    tenant: str,
    url: str,
    now: float,
    *,
    gone: bool,
    disable_seconds: float,
    longest_pause: float,
) -> tuple[bool, bool]:
    """An endpoint did not take a delivery. Returns whether it is disabled, and whether it is so since just now.

    gone: it says that it will never take another; disable_seconds: for how long it may fail without a success between;
    longest_pause: seconds for which its next failure may be put off.
    """
    before = _hold(connection, db, tenant, url, now)
    failing_since = before.failing_since if before.forget_at > now else now
    disabled_at = before.disabled_at
    newly = disabled_at is None and (gone or now - failing_since >= disable_seconds)
    if newly:
        disabled_at = now
    kept = longest_pause + FORGET_FAILURES_SECONDS if disabled_at is None else FORGET_DISABLED_SECONDS
    connection.execute(
        update(webhook_endpoints)
        .where(_is(tenant, url))
        .values(failing_since=failing_since, disabled_at=disabled_at, forget_at=now + kept)
    )
    return disabled_at is not None, newly


def _hold(connection: Connection, db: Database, tenant: str, url: str, now: float) -> Row[Any]:
    """The endpoint's row, made if need be, and locked: who fails at the same time sees what this one has made of it."""
    make = (
        db.insert(webhook_endpoints)
        .values(tenant=tenant, url_sha256=hash_url(url), failing_since=now, forget_at=now)
        .on_conflict_do_nothing()
    )
    row: Row[Any] | None = None
    while row is None:  # found, or made, or taken away by a success just now and made the next time
        connection.execute(make)
        row = connection.execute(select(webhook_endpoints).where(_is(tenant, url)).with_for_update()).one_or_none()
    return row


def forget_endpoints(db: Database) -> ColumnElement[bool]:
    """A condition: endpoints of which nothing needs to be remembered any more."""
    # In a subquery, which is evaluated once: PostgreSQL looks nothing up in an index by what is volatile.
    return webhook_endpoints.c.forget_at <= select(db.now).scalar_subquery()


def hash_url(url: str) -> str:
    """What stands for a URL in a key: it may be too long for an index."""
    return sha256(url.encode()).hexdigest()


def _is(tenant: str, url: str) -> ColumnElement[bool]:
    return and_(webhook_endpoints.c.tenant == tenant, webhook_endpoints.c.url_sha256 == hash_url(url))
