"""jobs that are still being received, and when their receiver was last alive

Against this schema the version before works on, so this goes first, then the workers are replaced, then the API. It
stores no job that is being received, and its workers claim none: what is staged does not wait. But:

- An API of the version before does not know the status ``receiving``. Where it is asked for a job that another process
  is receiving, or for a list with one in it, it answers 500: send no uploads before all API processes are replaced.
- What it cancels of these jobs leaves chunks behind that stay staged. They go when their job goes.
- Its sweeps do not look for uploads whose receiver died; those of this version do.

The column is null in every row there is, so nothing is rewritten; the index is built over none of them.
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
