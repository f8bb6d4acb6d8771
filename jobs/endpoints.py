"""How the endpoints of webhooks fare: one that fails for days, or says that it is gone, is disabled.

An endpoint is a URL of a tenant. It has a row while it fails; a success takes the row away, and with it the disabling.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select

from jobs.database import Database
from jobs.webhook_tables import webhook_endpoints

FORGET_FAILURES_SECONDS = 86_400.0
"""An endpoint that was not seen to fail for so long starts afresh: no attempt waits for half as long."""
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
    connection: Connection, db: Database, tenant: str, url: str, now: float, *, gone: bool, disable_seconds: float
) -> tuple[bool, bool]:
    """An endpoint did not take a delivery. Returns whether it is disabled, and whether it is so since just now.

    gone: it says that it will never take another; disable_seconds: for how long it may fail without a success between.
    """
    before = connection.execute(select(webhook_endpoints).where(_is(tenant, url)).with_for_update()).one_or_none()
    failing_since, disabled_at = now, None
    if before is not None:
        disabled_at = before.disabled_at
        if before.last_failed_at > now - FORGET_FAILURES_SECONDS:
            failing_since = before.failing_since
    newly = disabled_at is None and (gone or now - failing_since >= disable_seconds)
    values: dict[str, Any] = {
        "failing_since": failing_since,
        "last_failed_at": now,
        "disabled_at": now if newly else disabled_at,
    }
    connection.execute(
        db.insert(webhook_endpoints)
        .values(tenant=tenant, url_sha256=hash_url(url), **values)
        .on_conflict_do_update(index_elements=list(webhook_endpoints.primary_key), set_=values)
    )
    return newly or disabled_at is not None, newly


def forget_endpoints(db: Database) -> ColumnElement[bool]:
    """A condition: endpoints of which nothing needs to be remembered any more."""
    last = webhook_endpoints.c.last_failed_at
    return and_(
        last <= db.now - FORGET_FAILURES_SECONDS,
        or_(webhook_endpoints.c.disabled_at.is_(None), last <= db.now - FORGET_DISABLED_SECONDS),
    )


def hash_url(url: str) -> str:
    """What stands for a URL in a key: it may be too long for an index."""
    return sha256(url.encode()).hexdigest()


def _is(tenant: str, url: str) -> ColumnElement[bool]:
    return and_(webhook_endpoints.c.tenant == tenant, webhook_endpoints.c.url_sha256 == hash_url(url))
