"""tenants that are suspended, a record of changes to keys and tenants, and an index of calls

The previous version works with this schema. It takes the requests of suspended tenants, and records no changes. A
trigger that filled in the tokenizer of chunks goes: version 0.1.0 and all later ones say it themselves.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER IF EXISTS fill_in_tokenizer ON chunks")
        op.execute("DROP FUNCTION IF EXISTS fill_in_tokenizer()")
    else:
        op.execute("DROP TRIGGER IF EXISTS fill_in_tokenizer")
    op.add_column("tenants", sa.Column("suspended_at", sa.Float(53)))
    op.create_table(
        "changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("by", sa.String(320), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_changes"),
    )
    of_calls = sa.text("origin = 'call'")
    op.create_index("ix_jobs_calls", "jobs", ["tenant", "id"], postgresql_where=of_calls, sqlite_where=of_calls)


def downgrade() -> None:
    op.drop_index("ix_jobs_calls", "jobs")
    op.drop_table("changes")
    op.drop_column("tenants", "suspended_at")
