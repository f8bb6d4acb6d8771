"""The tables of webhooks. A delivery is one event of one job on its way to one URL, under one id over all its attempts.

Deliveries have no foreign key to their job: one that is still to be sent outlives a job that is deleted.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import (
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    String,
    Table,
    Text,
    false,
    literal_column,
)

from jobs.store.tables import RowId, Seconds, metadata


class DeliveryState(StrEnum):
    """Where a delivery is. All but the first are ends, which only a call for redelivery undoes."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    """Every attempt failed, or one was answered in a way that makes further ones pointless."""
    SKIPPED = "skipped"
    """Not tried any more: its endpoint is disabled."""


webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", String(40), primary_key=True),
    # Unique: a job ends once, so it has one event.
    Column("job_id", String(40), nullable=False, unique=True),
    Column("tenant", String(64), nullable=False),
    Column("event", String(32), nullable=False),
    Column("url", Text, nullable=False),
    Column("host", String(255), nullable=False),
    # As it is sent, byte for byte, so that all attempts say the same.
    Column("body", LargeBinary, nullable=False),
    Column("state", String(16), nullable=False),
    # Of a pending one: when its next attempt is due; while an attempt holds it (claim_id), when that one's lease ends.
    Column("due_at", Seconds, nullable=False),
    # The fence: an unguessable id, known to whoever makes the present attempt.
    Column("claim_id", String(32)),
    # Attempts begun so far, and those that failed since it was created or last called for: the place in the schedule.
    Column("attempts", Integer, nullable=False),
    Column("failures", SmallInteger, nullable=False),
    # Called for by its owner: sent even to an endpoint that is disabled.
    Column("called_for", Boolean, nullable=False, server_default=false()),
    Column("created_at", Seconds, nullable=False),
    Column("remove_at", Seconds, nullable=False),
)
# Written into the statement, never a parameter: see jobs.store.tables.WAITING.
PENDING = webhook_deliveries.c.state == literal_column(f"'{DeliveryState.PENDING.value}'")
CLAIMED_DELIVERY = webhook_deliveries.c.claim_id.is_not(None)
# Claims go from tenant to tenant, and within one from host to host, so that nobody with many hides the others.
Index(
    "ix_webhook_deliveries_pending",
    webhook_deliveries.c.tenant,
    webhook_deliveries.c.due_at,
    webhook_deliveries.c.id,
    postgresql_where=PENDING,
    sqlite_where=PENDING,
)
Index(
    "ix_webhook_deliveries_pending_host",
    webhook_deliveries.c.tenant,
    webhook_deliveries.c.host,
    webhook_deliveries.c.due_at,
    webhook_deliveries.c.id,
    postgresql_where=PENDING,
    sqlite_where=PENDING,
)
Index(
    "ix_webhook_deliveries_claimed",
    webhook_deliveries.c.tenant,
    webhook_deliveries.c.host,
    postgresql_where=CLAIMED_DELIVERY,
    sqlite_where=CLAIMED_DELIVERY,
)
Index(
    "ix_webhook_deliveries_remove_at",
    webhook_deliveries.c.remove_at,
    postgresql_where=~PENDING,
    sqlite_where=~PENDING,
)

webhook_attempts = Table(
    "webhook_attempts",
    metadata,
    Column("delivery_id", String(40), ForeignKey("webhook_deliveries.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("started_at", Seconds, nullable=False),
    Column("seconds", Seconds),
    # Null where it was delivered.
    Column("reason", String(32)),
    Column("detail", Text, nullable=False),
    # HTTP's, and the beginning of what was answered with it; null and empty without an answer.
    Column("status", SmallInteger),
    Column("response", Text, nullable=False),
)

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    # A row is there while the endpoint fails.
    Column("tenant", String(64), primary_key=True),
    Column("url_sha256", String(64), primary_key=True),
    Column("failing_since", Seconds, nullable=False),
    Column("disabled_at", Seconds),
    # From then on it starts afresh. Every failure puts it off.
    Column("forget_at", Seconds, nullable=False, index=True),
)

webhook_secrets = Table(
    "webhook_secrets",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("tenant", String(64), nullable=False),
    # In the clear: it signs.
    Column("secret", String(128), nullable=False),
    Column("created_at", Seconds, nullable=False),
    # Null of the current one, of which a tenant has one at most.
    Column("expires_at", Seconds),
)
_CURRENT = webhook_secrets.c.expires_at.is_(None)
Index(
    "uq_webhook_secrets_current",
    webhook_secrets.c.tenant,
    unique=True,
    postgresql_where=_CURRENT,
    sqlite_where=_CURRENT,
)
Index("ix_webhook_secrets_tenant", webhook_secrets.c.tenant)
