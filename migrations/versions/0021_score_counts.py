"""counts of scores by artefact, by which drift is seen

The previous version works with this schema, and counts nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "score_counts",
        sa.Column("artefact", sa.String(64), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("distribution", sa.String(16), nullable=False),
        sa.Column("cell", sa.SmallInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("artefact", "hour", "distribution", "cell", name="pk_score_counts"),
    )


def downgrade() -> None:
    op.drop_table("score_counts")
