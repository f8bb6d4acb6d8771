"""which chunks are interactive, so that a busy worker finds them between the steps of other work

The previous version works with this schema. So migrate first, then replace the workers, then the API.

- An API of the previous version stores chunks whose flag is false. They are claimed in the order of ``due_at``, as
  before. Until this API is replaced, its interactive calls are not scored between the steps of other work.
- A worker of the previous version does not know the flag, and claims by ``due_at`` alone, as before.
- ``token_count`` has another meaning from here on, which needs no change of the schema. It was the tokens of all
  sequences; now it is what has to be computed. The previous version stores larger numbers than this one. So claims of
  chunks that it accepted are smaller than they could be, and its own workers take more of this version's chunks at
  once.

Chunks that wait or are claimed now get their flag from their jobs. The transaction locks ``chunks`` from its first
statement, and reads it once for the index. Submissions and claims wait for that; renewals do not.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("chunks", sa.Column("interactive", sa.Boolean(), nullable=False, server_default=sa.false()))
    true = "true" if op.get_bind().dialect.name == "postgresql" else "1"
    op.execute(
        f"UPDATE chunks SET interactive = {true} WHERE state IN ('waiting', 'claimed')"
        " AND job_id IN (SELECT id FROM jobs WHERE priority = 'interactive' AND finished_at IS NULL)"
    )
    waiting = sa.text("state = 'waiting' AND interactive" + ("" if true == "true" else " = 1"))
    op.create_index(
        "ix_chunks_waiting_interactive",
        "chunks",
        ["model", "tokenizer_fingerprint", "due_at", "id"],
        postgresql_where=waiting,
        sqlite_where=waiting,
    )


def downgrade() -> None:
    op.drop_index("ix_chunks_waiting_interactive", "chunks")
    op.drop_column("chunks", "interactive")
