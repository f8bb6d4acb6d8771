"""The tables of webhooks. A delivery is one event of one job for one URL, with the same id in all attempts.

Deliveries have no foreign key to their job, because one that is still to be sent outlives a deleted job.
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

from jobs.store.tables import RowId, Seconds, metadata, partial_index


class DeliveryState(StrEnum):
    """State of a delivery. All but the first are final, unless the owner asks for redelivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"  # every attempt failed, or the endpoint was disabled by one
    SKIPPED = "skipped"  # not sent, because its endpoint is disabled


webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", String(40), primary_key=True),
    # Of a job, or of a batch of a file. Unique: each ends once, so it has one event.
    Column("job_id", String(40), nullable=False, unique=True),
    Column("tenant", String(64), nullable=False),
    Column("event", String(32), nullable=False),
    Column("url", Text, nullable=False),
    Column("host", String(255), nullable=False),
    # The bytes that are sent, the same in all attempts.
    Column("body", LargeBinary, nullable=False),
    Column("state", String(16), nullable=False),
    # Of a pending delivery: when its next attempt is due, or, while it is claimed (claim_id), when the lease ends.
    Column("due_at", Seconds, nullable=False),
    # The fence: an unguessable id, known only to the process that makes the present attempt.
    Column("claim_id", String(32)),
    # Attempts begun so far, and attempts failed since its creation or last redelivery, which index the schedule.
    Column("attempts", Integer, nullable=False),
    Column("failures", SmallInteger, nullable=False),
    # Whether its owner asked for redelivery: then it is sent even to a disabled endpoint.
    Column("called_for", Boolean, nullable=False, server_default=false()),
    Column("created_at", Seconds, nullable=False),
    Column("remove_at", Seconds, nullable=False),
    Column("traceparent", String(55)),  # of the job; null: it is not traced
)
# A literal in the statement and never a parameter: see jobs.store.tables.WAITING.
PENDING = webhook_deliveries.c.state == literal_column(f"'{DeliveryState.PENDING.value}'")
CLAIMED_DELIVERY = webhook_deliveries.c.claim_id.is_not(None)
# Claims go from tenant to tenant, and from host to host of a tenant: see jobs.webhooks.delivery_order.
partial_index(
    "ix_webhook_deliveries_pending",
    webhook_deliveries.c.tenant,
    webhook_deliveries.c.due_at,
    webhook_deliveries.c.id,
    where=PENDING,
)
partial_index(
    "ix_webhook_deliveries_pending_host",
    webhook_deliveries.c.tenant,
    webhook_deliveries.c.host,
    webhook_deliveries.c.due_at,
    webhook_deliveries.c.id,
    where=PENDING,
)
partial_index(
    "ix_webhook_deliveries_claimed", webhook_deliveries.c.tenant, webhook_deliveries.c.host, where=CLAIMED_DELIVERY
)
partial_index("ix_webhook_deliveries_remove_at", webhook_deliveries.c.remove_at, where=~PENDING)

webhook_attempts = Table(
    "webhook_attempts",
    metadata,
    Column("delivery_id", String(40), ForeignKey("webhook_deliveries.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("started_at", Seconds, nullable=False),
    Column("seconds", Seconds),
    # Null if it was delivered.
    Column("reason", String(32)),
    Column("detail", Text, nullable=False),
    # Status and start of the response; null and empty without a response.
    Column("status", SmallInteger),
    Column("response", Text, nullable=False),
)

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    # An endpoint has a row while it fails.
    Column("tenant", String(64), primary_key=True),
    Column("url_sha256", String(64), primary_key=True),
    Column("failing_since", Seconds, nullable=False),
    Column("disabled_at", Seconds),
    # From then on the row counts no more and may be deleted. Every failure postpones it.
    Column("forget_at", Seconds, nullable=False, index=True),
)

webhook_secrets = Table(
    "webhook_secrets",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("tenant", String(64), nullable=False),
    # In plain text, because it signs.
    Column("secret", String(128), nullable=False),
    Column("created_at", Seconds, nullable=False),
    # Null for the current secret, of which a tenant has at most one.
    Column("expires_at", Seconds),
)
_CURRENT = webhook_secrets.c.expires_at.is_(None)
partial_index("uq_webhook_secrets_current", webhook_secrets.c.tenant, unique=True, where=_CURRENT)
Index("ix_webhook_secrets_tenant", webhook_secrets.c.tenant)
