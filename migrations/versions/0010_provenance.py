"""provenances: what computed the scores of a chunk

The previous version works with this schema: its workers store scores that refer to no provenance, which means that it
is not known, and its API does not read any. Adding a column without a default rewrites no row.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "provenances",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("recorded_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_provenances"),
    )
    op.add_column("chunk_scores", sa.Column("provenance_id", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("chunk_scores", "provenance_id")
    op.drop_table("provenances")
