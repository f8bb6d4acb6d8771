"""indexes of the jobs that lists show, without calls and lines of batches

The previous version works with this schema. Its lists say which jobs they want in other words, which PostgreSQL finds
in the new indexes, too, as long as it plans a statement for the values of its parameters.

The transaction reads ``jobs`` three times. Requests that accept work, claims and finished batches wait for that.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_jobs_listed": "origin = 'job'",
    "ix_jobs_listed_unfinished": "origin = 'job' AND finished_at IS NULL",
    "ix_jobs_failed": "error_code IS NOT NULL",
}


def upgrade() -> None:
    for name, condition in INDEXES.items():
        where = sa.text(condition)
        op.create_index(name, "jobs", ["tenant", "id"], postgresql_where=where, sqlite_where=where)
    op.drop_index("ix_jobs_tenant_id", "jobs")


def downgrade() -> None:
    op.create_index("ix_jobs_tenant_id", "jobs", ["tenant", "id"])
    for name in INDEXES:
        op.drop_index(name, "jobs")
