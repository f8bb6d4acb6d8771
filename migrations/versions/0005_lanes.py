"""lanes, by which claims are shared out among tenants

The previous version works with this schema. So migrate first, then replace the workers, then the API.

- An API of the previous version accepts jobs without opening their lane. A claim opens the lane of the most urgent
  chunk that it finds. So this work is scored, although tenants do not take turns for it.
- A worker of the previous version does not know lanes: it claims by ``due_at`` alone, and charges no lane.

The transaction reads ``chunks`` once for the index. Submissions and claims wait for that; renewals do not.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lanes",
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("interactive", sa.Boolean(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("virtual_time", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("model", "tenant", "interactive", name="pk_lanes"),
    )
    op.execute(
        "INSERT INTO lanes (model, tenant, interactive, is_open, virtual_time)"
        " SELECT DISTINCT model, tenant, interactive, true, 0.0 FROM chunks WHERE state = 'waiting'"
    )
    op.create_index(
        "ix_chunks_waiting_lane",
        "chunks",
        ["model", "tenant", "interactive", "tokenizer_fingerprint", "due_at", "id"],
        postgresql_where=sa.text("state = 'waiting'"),
        sqlite_where=sa.text("state = 'waiting'"),
    )


def downgrade() -> None:
    op.drop_index("ix_chunks_waiting_lane", "chunks")
    op.drop_table("lanes")
