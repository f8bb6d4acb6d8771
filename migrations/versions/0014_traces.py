"""traceparent: the trace that a job belongs to, and its webhook

The previous version works with this schema: the jobs that it accepts have no trace.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("traceparent", sa.String(55)))
    op.add_column("webhook_deliveries", sa.Column("traceparent", sa.String(55)))


def downgrade() -> None:
    op.drop_column("webhook_deliveries", "traceparent")
    op.drop_column("jobs", "traceparent")
