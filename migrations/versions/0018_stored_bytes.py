"""what jobs store, and what the lines of batches will write, in bytes

The previous version works with this schema. Its jobs and lines count as nothing. Lines that it writes stay in the
reserved bytes of their batch until the batch has ended.

On PostgreSQL the transaction reads ``jobs`` once. Requests that submit work, claims and finished batches wait for that.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

INDEX = "ix_jobs_stored_bytes"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("file_batches", sa.Column("reserved_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("batch_lines", sa.Column("answer_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    where = sa.text("stored_bytes >= 4096")
    op.create_index(INDEX, "jobs", ["tenant", "origin", "stored_bytes"], postgresql_where=where, sqlite_where=where)


def downgrade() -> None:
    op.drop_index(INDEX, "jobs")
    op.drop_column("batch_lines", "answer_bytes")
    op.drop_column("file_batches", "reserved_bytes")
    op.drop_column("jobs", "stored_bytes")
