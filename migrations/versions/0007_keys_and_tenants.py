"""tenants with their shares and limits, and API keys

All existing rows belong to the tenant ``default``, which is made here. Other tenants are made with their first key.
The previous version works with this schema: its API asks for no key and counts no quota, and its workers use the weight
one for every tenant.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tenants = op.create_table(
        "tenants",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("weight", sa.Float(53), nullable=False, server_default="1"),
        sa.Column("max_waiting_tokens", sa.BigInteger()),
        sa.Column("requests_per_second", sa.Integer()),
        sa.Column("requests_per_minute", sa.Integer()),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("waiting_tokens", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("recount_at", sa.Float(53), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("name", name="pk_tenants"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("expires_at", sa.Float(53)),
        sa.Column("revoked_at", sa.Float(53)),
        sa.Column("last_used_at", sa.Float(53)),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_api_keys_tenant_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    now = "extract(epoch from now())" if is_postgresql else "(julianday('now') - 2440587.5) * 86400.0"
    op.execute(sa.insert(tenants).values(name="default", created_at=sa.literal_column(now)))


def downgrade() -> None:
    op.drop_table("api_keys")
    op.drop_table("tenants")
