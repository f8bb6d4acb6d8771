"""the work of computing a prefix, and whether the end of a job has to outlive a crash of the database

The previous version works with this schema. A prefix that it stores has no work and counts as its tokens, and the ends
of all of its jobs outlive a crash.

On PostgreSQL the transaction writes all rows of ``prefixes`` once. Requests that submit work and claims wait for that.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# As scoring.work counts a token of four bytes, for a prefix of 64 tokens or more.
WORK = "round(length(tokens) / 4.0 * (1 + length(tokens) / 30720.0))"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("ends_durably", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("prefixes", sa.Column("work", sa.Integer()))
    op.execute(f"UPDATE prefixes SET work = CASE WHEN length(tokens) < 256 THEN 0 ELSE {WORK} END")


def downgrade() -> None:
    op.drop_column("prefixes", "work")
    op.drop_column("jobs", "ends_durably")
