"""which chunks are interactive, so that a busy worker finds them between the steps of other work

Against this schema the version before works on, so this goes first, then the workers are replaced, then the API:

- An API of the version before stores chunks whose flag is false. They are claimed in the order they are due in, as
  before; until the API is replaced, no interactive call of its is scored between the steps of other work.
- A worker of the version before does not know the flag, and claims by ``due_at`` alone, as before.
- ``token_count`` means another thing from here on, and needs no change of the schema: what has to be computed, where it
  was the tokens of all sequences. The version before stores larger numbers than this one, so claims of what it accepted
  are smaller than they might be; its own workers take more of this version's chunks at a time.

The chunks that wait or are claimed now get their flag from their jobs. The transaction locks ``chunks`` from its first
statement, and reads it once for the index: submissions and claims wait for that. Renewals do not.
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
