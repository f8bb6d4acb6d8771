"""how workers plan and how far their estimates are off, so that the API can say how long a job would take

The previous version works with this schema: its workers say nothing of it, and its API does not ask.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("planning", sa.JSON()))
    op.add_column("workers", sa.Column("estimate_ratio", sa.Float(53)))


def downgrade() -> None:
    op.drop_column("workers", "estimate_ratio")
    op.drop_column("workers", "planning")
