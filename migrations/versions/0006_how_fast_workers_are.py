"""how fast each worker is, so that the API can tell how long what waits will take

The previous version works with this schema: its workers register without a rate, which means that the rate is unknown,
and its API does not read it. A worker of the previous version could only keep the rate of a row that a worker of this
version has made if both had the same id, which does not happen.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("tokens_per_second", sa.Float(53)))


def downgrade() -> None:
    op.drop_column("workers", "tokens_per_second")
