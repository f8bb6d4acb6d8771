"""The secrets that a tenant's webhooks are signed with: one, or two while the older of them is being replaced.

They are kept readable, because they sign: whoever can read the database can forge a delivery.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, or_, select, update

from jobs.store.database import Database
from jobs.webhooks.tables import webhook_secrets

_LOCK = 0x5C02E5
"""With the tenant's hash: PostgreSQL's advisory lock of a rotation."""


@dataclass(frozen=True, slots=True)
class WebhookSecret:
    """A live secret. Times are Unix seconds; expires_at: None of the current one."""

    secret: str
    created_at: float
    expires_at: float | None


def live_secrets(db: Database, tenant: str, new_secret: Callable[[], str]) -> list[WebhookSecret]:
    """A tenant's live secrets, the current one first; it is made where there is none yet. Raises StorageUnavailable."""
    with db.read() as connection:
        found = _live(connection, db, tenant)
    if found and found[0].expires_at is None:
        return found
    with db.write() as connection:
        _make(connection, db, tenant, new_secret())
        return _live(connection, db, tenant)


def rotate_secret(
    db: Database, tenant: str, new_secret: Callable[[], str], overlap_seconds: float
) -> list[WebhookSecret]:
    """Make a new current secret. The one before stays live, and signs too, for ``overlap_seconds``; an older one that
    was still live is not any more. Returns what is live now, as :func:`live_secrets` does.
    """
    with db.write() as connection:
        if not db.is_sqlite:
            # One rotation of a tenant at a time; there may be no row yet that could be locked.
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK, func.hashtext(tenant))))
        of_tenant = webhook_secrets.c.tenant == tenant
        connection.execute(delete(webhook_secrets).where(of_tenant, webhook_secrets.c.expires_at.is_not(None)))
        connection.execute(update(webhook_secrets).where(of_tenant).values(expires_at=db.now + overlap_seconds))
        _make(connection, db, tenant, new_secret())
        return _live(connection, db, tenant)


def _make(connection: Connection, db: Database, tenant: str, secret: str) -> None:
    """Make a tenant's current secret, unless there is one."""
    row = {"tenant": tenant, "secret": secret, "created_at": db.now}
    connection.execute(db.insert(webhook_secrets).values(row).on_conflict_do_nothing())


def _live(connection: Connection, db: Database, tenant: str) -> list[WebhookSecret]:
    rows: list[Row[Any]] = list(
        connection.execute(
            select(webhook_secrets)
            .where(
                webhook_secrets.c.tenant == tenant,
                or_(webhook_secrets.c.expires_at.is_(None), webhook_secrets.c.expires_at > db.now),
            )
            .order_by(webhook_secrets.c.id.desc())
        )
    )
    return [WebhookSecret(row.secret, row.created_at, row.expires_at) for row in rows]
