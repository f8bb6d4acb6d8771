"""where prefixes are at home, and for how long a chunk is left to that worker

The previous version works with this schema. It leaves no chunk to anybody, and claims what is left to others.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("prefixes", sa.Column("home", sa.String(128)))
    op.add_column("prefixes", sa.Column("home_at", sa.Float(53)))
    op.add_column("chunks", sa.Column("home", sa.String(128)))
    op.add_column("chunks", sa.Column("home_until", sa.Float(53)))


def downgrade() -> None:
    for table, column in (("chunks", "home_until"), ("chunks", "home"), ("prefixes", "home_at"), ("prefixes", "home")):
        op.drop_column(table, column)
