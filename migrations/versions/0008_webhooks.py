"""webhooks: what a job asks for, and what is sent

The previous version works with this schema: the jobs that its API accepts ask for no webhook, and it refuses jobs that
do. But its processes sweep too. If one of them ends a job of this version's API (because of a deadline or a poison
chunk), the job gets no delivery. So replace the workers before the API, as always, and all API processes soon after.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

PENDING = "state = 'pending'"
NOT_PENDING = "state != 'pending'"
CLAIMED = "claim_id IS NOT NULL"
CURRENT = "expires_at IS NULL"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("webhook", sa.JSON()))
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("due_at", sa.Float(53), nullable=False),
        sa.Column("claim_id", sa.String(32)),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("failures", sa.SmallInteger(), nullable=False),
        sa.Column("called_for", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("remove_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
        sa.UniqueConstraint("job_id", name="uq_webhook_deliveries_job_id"),
    )
    _partial_index("ix_webhook_deliveries_pending", ["tenant", "due_at", "id"], PENDING)
    _partial_index("ix_webhook_deliveries_pending_host", ["tenant", "host", "due_at", "id"], PENDING)
    _partial_index("ix_webhook_deliveries_claimed", ["tenant", "host"], CLAIMED)
    _partial_index("ix_webhook_deliveries_remove_at", ["remove_at"], NOT_PENDING)
    op.create_table(
        "webhook_attempts",
        sa.Column("delivery_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("started_at", sa.Float(53), nullable=False),
        sa.Column("seconds", sa.Float(53)),
        sa.Column("reason", sa.String(32)),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("status", sa.SmallInteger()),
        sa.Column("response", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["delivery_id"],
            ["webhook_deliveries.id"],
            ondelete="CASCADE",
            name="fk_webhook_attempts_delivery_id_webhook_deliveries",
        ),
        sa.PrimaryKeyConstraint("delivery_id", "number", name="pk_webhook_attempts"),
    )
    op.create_table(
        "webhook_endpoints",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("url_sha256", sa.String(64), nullable=False),
        sa.Column("failing_since", sa.Float(53), nullable=False),
        sa.Column("disabled_at", sa.Float(53)),
        sa.Column("forget_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "url_sha256", name="pk_webhook_endpoints"),
    )
    op.create_index("ix_webhook_endpoints_forget_at", "webhook_endpoints", ["forget_at"])
    op.create_table(
        "webhook_secrets",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("secret", sa.String(128), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("expires_at", sa.Float(53)),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_secrets"),
    )
    _partial_index("uq_webhook_secrets_current", ["tenant"], CURRENT, table="webhook_secrets", unique=True)
    op.create_index("ix_webhook_secrets_tenant", "webhook_secrets", ["tenant"])


def _partial_index(
    name: str, columns: list[str], where: str, *, table: str = "webhook_deliveries", unique: bool = False
) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, postgresql_where=condition, sqlite_where=condition)


def downgrade() -> None:
    for table in ("webhook_secrets", "webhook_endpoints", "webhook_attempts", "webhook_deliveries"):
        op.drop_table(table)
    op.drop_column("jobs", "webhook")
