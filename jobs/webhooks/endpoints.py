"""The endpoints of webhooks. One that fails for days, or responds with 410 Gone, is disabled.

An endpoint is a URL of a tenant. It has a row while it fails; a success deletes the row, which also enables it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy import ColumnElement, and_, delete, select, update

from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.upsert import insert
from jobs.webhooks.tables import webhook_endpoints

FORGET_FAILURES_SECONDS = 86_400.0
"""Failures are forgotten if none follows for this long, beyond the longest pause between two attempts."""
FORGET_DISABLED_SECONDS = 90 * 86_400.0
"""A disabled endpoint is enabled again if nothing was sent to it for this long."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A failing endpoint. Times are Unix seconds."""

    failing_since: float
    disabled_at: float | None  # None if it is enabled


def read_endpoint(tx: Transaction, tenant: str, url: str) -> Endpoint | None:
    """Return an endpoint; None if it is not failing."""
    row = tx.execute(select(webhook_endpoints).where(_matches(tenant, url))).one_or_none()
    return None if row is None else Endpoint(row.failing_since, row.disabled_at)


def find_endpoint(db: Database, tenant: str, url: str) -> Endpoint | None:
    """Call :func:`read_endpoint` in a transaction of its own. Raises StorageUnavailable."""
    with db.read() as tx:
        return read_endpoint(tx, tenant, url)


def record_success(tx: Transaction, tenant: str, url: str) -> None:
    """Forget the failures of an endpoint after a successful delivery."""
    tx.execute(delete(webhook_endpoints).where(_matches(tenant, url)))


def record_failure(
    tx: Transaction, tenant: str, url: str, now: float, *, gone: bool, disable_seconds: float, max_pause_seconds: float
) -> tuple[bool, bool]:
    """Record a failed attempt. Returns whether the endpoint is disabled, and whether this failure disabled it.

    gone: the endpoint responded with 410; disable_seconds: how long it may fail without a success;
    max_pause_seconds: longest time until the next attempt.
    """
    first = {"tenant": tenant, "url_sha256": hash_url(url), "failing_since": now, "forget_at": now}
    before = tx.execute(_LOCK_OR_CREATE, first).one()
    failing_since = before.failing_since if before.forget_at > now else now
    disabled_at = before.disabled_at
    newly = disabled_at is None and (gone or now - failing_since >= disable_seconds)
    if newly:
        disabled_at = now
    kept = max_pause_seconds + FORGET_FAILURES_SECONDS if disabled_at is None else FORGET_DISABLED_SECONDS
    tx.execute(
        update(webhook_endpoints)
        .where(_matches(tenant, url))
        .values(failing_since=failing_since, disabled_at=disabled_at, forget_at=now + kept)
    )
    return disabled_at is not None, newly


# The update changes nothing. It locks the row, so that simultaneous failures are recorded one after the other.
_LOCK_OR_CREATE = (
    insert(webhook_endpoints)
    .on_conflict_do_update(
        index_elements=list(webhook_endpoints.primary_key), set_={"forget_at": webhook_endpoints.c.forget_at}
    )
    .returning(*webhook_endpoints.c)
)

FORGETTABLE = webhook_endpoints.c.forget_at <= NOW
"""SQL condition: the failures of the endpoint can be forgotten, so its row can be deleted."""


def hash_url(url: str) -> str:
    """Return the SHA-256 of a URL, which stands for it in the primary key: a URL may be too long for an index."""
    return sha256(url.encode()).hexdigest()


def _matches(tenant: str, url: str) -> ColumnElement[bool]:
    return and_(webhook_endpoints.c.tenant == tenant, webhook_endpoints.c.url_sha256 == hash_url(url))
