"""how fast each worker is, so that the API can tell how long what waits will take

The version before works on against this schema: its workers register without a rate, which is a rate not known, and its
API does not ask. A row that a worker of this version made, and one of the version before makes anew, keeps its rate;
their ids differ, so that does not happen.
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
