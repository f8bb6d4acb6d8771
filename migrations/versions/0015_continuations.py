"""continuations: labels of any number of tokens, and likelihoods

The previous version works with this schema. Its workers claim no chunk with continuations: such a chunk says that its
longest sequence is 2**30 tokens longer than it is (``CONTINUED`` in :mod:`jobs.store.tables`), and so it fits no
context that they know. It waits for a worker of this version. So replace the workers before the API processes, as
docs/architecture.md says. An API process of the previous version would show the log-probabilities of continuations as
those of labels of one token. So send no such requests before all API processes are replaced.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("chunk_inputs", sa.Column("continuations", sa.LargeBinary()))
    op.add_column("chunk_scores", sa.Column("targets", sa.LargeBinary()))


def downgrade() -> None:
    op.drop_column("chunk_scores", "targets")
    op.drop_column("chunk_inputs", "continuations")
