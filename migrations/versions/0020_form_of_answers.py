"""what an answer needs beside the scores of a job, such as the questions of a decision

The previous version works with this schema, and shows the scores of such a job as those of any other.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("form", sa.JSON()))


def downgrade() -> None:
    op.drop_column("jobs", "form")
