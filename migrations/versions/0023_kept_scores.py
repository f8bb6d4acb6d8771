"""scores that later jobs may use, and which items of a chunk need not be computed

The previous version works with this schema. Its workers compute all items, and its API has none reused.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "kept_scores",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("content", sa.LargeBinary(16), nullable=False),
        sa.Column("provenance_id", sa.BigInteger(), nullable=False),
        sa.Column("algorithms", sa.String(255), nullable=False),
        sa.Column("scores", sa.LargeBinary(), nullable=False),
        sa.Column("kept_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_kept_scores"),
        sa.UniqueConstraint("tenant", "content", "provenance_id", name="uq_kept_scores_tenant_content_provenance_id"),
    )
    op.add_column("chunk_inputs", sa.Column("sources", sa.LargeBinary()))
    op.add_column("jobs", sa.Column("reused_items", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("workers", sa.Column("provenance_id", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("workers", "provenance_id")
    op.drop_column("jobs", "reused_items")
    op.drop_column("chunk_inputs", "sources")
    op.drop_table("kept_scores")
