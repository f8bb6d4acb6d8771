"""jobs that are still being received, and when their receiver was last alive

The previous version works with this schema. So migrate first, then replace the workers, then the API. The previous
version stores no job that is being received, and its workers claim none, because staged chunks do not wait. But:

- An API of the previous version does not know the status ``receiving``. If it is asked for a job that another process
  is receiving, or for a list that contains one, it answers 500. Send no uploads before all API processes are replaced.
- If it cancels such a job, some chunks stay staged. They are removed with their job.
- Its sweeps do not look for uploads whose receiver died. The sweeps of this version do.

The column is null in every existing row, so nothing is rewritten, and the index is empty at first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("received_at", sa.Float(precision=53), nullable=True))
    given = sa.text("received_at IS NOT NULL")
    op.create_index("ix_jobs_received_at", "jobs", ["received_at"], postgresql_where=given, sqlite_where=given)


def downgrade() -> None:
    op.execute("DELETE FROM jobs WHERE status = 'receiving'")
    op.execute(
        "UPDATE chunks SET state = 'waiting' WHERE state = 'staged'"
        " AND job_id IN (SELECT id FROM jobs WHERE received_at IS NOT NULL)"
    )
    op.drop_index("ix_jobs_received_at", "jobs")
    op.drop_column("jobs", "received_at")
