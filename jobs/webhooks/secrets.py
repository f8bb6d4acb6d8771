"""The secrets that sign a tenant's webhooks: one, or two for a while after a rotation.

They are stored in plain text, because signing needs them: whoever can read the database can forge webhooks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, delete, select, update

from jobs.store.clock import NOW, is_to_come
from jobs.store.database import Database, Transaction
from jobs.store.upsert import insert_if_new
from jobs.tenancy.changes import Action, record_change
from jobs.webhooks.tables import webhook_secrets

_LOCK = 0x5C02E5
"""The number of the lock that a rotation holds. Nothing else uses it."""


@dataclass(frozen=True, slots=True)
class WebhookSecret:
    """A secret that has not expired. Times are Unix seconds."""

    secret: str
    created_at: float
    expires_at: float | None  # None for the current one


def live_secrets(db: Database, tenant: str, new_secret: Callable[[], str]) -> list[WebhookSecret]:
    """Return a tenant's live secrets, the current one first, which is created if there is none.

    Raises StorageUnavailable.
    """
    with db.read() as tx:
        found = _read_live(tx, tenant)
    if found and found[0].expires_at is None:
        return found
    with db.write() as tx:
        _create_current(tx, tenant, new_secret())
        return _read_live(tx, tenant)


def rotate_secret(
    db: Database, tenant: str, new_secret: Callable[[], str], overlap_seconds: float, *, by: str | None = None
) -> list[WebhookSecret]:
    """Create a new current secret. The previous one also signs for ``overlap_seconds``; older ones are deleted.

    by: who rotates it; by default the user of this process. Returns the live secrets, as :func:`live_secrets` does.
    """
    with db.write() as tx:
        # One rotation of a tenant at a time. There may be no row yet to lock instead.
        tx.lock(_LOCK, tenant)
        of_tenant = webhook_secrets.c.tenant == tenant
        tx.execute(delete(webhook_secrets).where(of_tenant, webhook_secrets.c.expires_at.is_not(None)))
        tx.execute(update(webhook_secrets).where(of_tenant).values(expires_at=NOW + overlap_seconds))
        _create_current(tx, tenant, new_secret())
        record_change(tx, Action.SECRET_ROTATED, tenant, by=by)
        return _read_live(tx, tenant)


def _create_current(tx: Transaction, tenant: str, secret: str) -> None:
    """Store a tenant's current secret, unless there is one."""
    row = {"tenant": tenant, "secret": secret, "created_at": NOW}
    tx.execute(insert_if_new(webhook_secrets).values(row))


def _read_live(tx: Transaction, tenant: str) -> list[WebhookSecret]:
    rows: list[Row[Any]] = list(
        tx.execute(
            select(webhook_secrets)
            .where(webhook_secrets.c.tenant == tenant, is_to_come(webhook_secrets.c.expires_at))
            .order_by(webhook_secrets.c.id.desc())
        )
    )
    return [WebhookSecret(row.secret, row.created_at, row.expires_at) for row in rows]
