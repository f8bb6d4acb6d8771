"""item_labels: which of a job's labels each of its items has

The previous version works with this schema: it accepts jobs whose items all have the same labels, and for other jobs it
shows the scores of all labels with each item.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("item_labels", sa.LargeBinary()))


def downgrade() -> None:
    op.drop_column("jobs", "item_labels")
