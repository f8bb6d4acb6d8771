"""lanes, by which claims are shared out among tenants

Against this schema the version before works on, so this goes first, then the workers are replaced, then the API:

- An API of the version before accepts jobs without opening their lane. A claim opens the lane of the most urgent chunk
  that it finds, so that work is scored, if not by turns.
- A worker of the version before does not know of lanes: it claims by ``due_at`` alone, and charges nobody.

The transaction reads ``chunks`` once for the index: submissions and claims wait for that. Renewals do not.
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
