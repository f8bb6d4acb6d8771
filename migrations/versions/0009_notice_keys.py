"""notice_key: what signs the result of a call in the notice of its end

The previous version works with this schema: its API accepts calls without a key, so their notices bring no result, and
its workers send none.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("notice_key", sa.LargeBinary()))


def downgrade() -> None:
    op.drop_column("jobs", "notice_key")
