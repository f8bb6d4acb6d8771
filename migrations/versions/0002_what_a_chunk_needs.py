"""what a chunk needs of its worker: its tokenizer, its context, its vocabulary

From here on, workers claim by model and tokenizer, and take no chunk that is too large for their model.

The previous version works with this schema. So migrate first, then replace the workers, then the API.

- An API of the previous version stores chunks that do not say what they need. A trigger fills in the tokenizer, from
  the prefix. The numbers stay 0, which means "not known" and excludes no worker, as before. (``/readyz`` of such an API
  answers 503 from here on, because it insists on its own revision. It still accepts jobs, but a load balancer stops
  using it: replace it soon.)
- A worker of the previous version still claims by model alone, whatever its tokenizer is. As long as one runs, the
  tokenizer must stay the same: replace the software first, then the checkpoint. Its claims are right and only slower,
  because the index contains the tokenizer. A worker of the previous version that is started now waits until it is
  replaced.

Only unfinished chunks are filled in, because nobody needs to know what a finished chunk would have needed. The
transaction locks ``chunks`` from its first statement. So submissions and claims wait until the backlog is rewritten and
its index is built. Renewals do not wait: running batches keep their leases.

The trigger and the defaults may be removed once no version before this one runs.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

FROM_PREFIX = "(SELECT prefixes.tokenizer_fingerprint FROM prefixes WHERE prefixes.id = {}.prefix_id)"


def upgrade() -> None:
    op.add_column(
        "chunks", sa.Column("tokenizer_fingerprint", sa.String(64), nullable=False, server_default=sa.text("''"))
    )
    for name in ("longest_sequence", "highest_token"):
        op.add_column("chunks", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    op.drop_index("ix_chunks_waiting", "chunks")
    from_prefix = FROM_PREFIX.format("chunks")
    op.execute(f"UPDATE chunks SET tokenizer_fingerprint = {from_prefix} WHERE state IN ('waiting', 'claimed')")
    _create_index(["model", "tokenizer_fingerprint", "due_at", "id"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"""
            CREATE FUNCTION fill_in_tokenizer() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                NEW.tokenizer_fingerprint := {FROM_PREFIX.format("NEW")};
                RETURN NEW;
            END $$
            """
        )
        op.execute(
            """
            CREATE TRIGGER fill_in_tokenizer BEFORE INSERT ON chunks FOR EACH ROW
            WHEN (NEW.tokenizer_fingerprint = '') EXECUTE FUNCTION fill_in_tokenizer()
            """
        )
    else:
        op.execute(
            f"""
            CREATE TRIGGER fill_in_tokenizer AFTER INSERT ON chunks FOR EACH ROW
            WHEN NEW.tokenizer_fingerprint = ''
            BEGIN
                UPDATE chunks SET tokenizer_fingerprint = {FROM_PREFIX.format("NEW")} WHERE id = NEW.id;
            END
            """
        )


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER fill_in_tokenizer ON chunks")
        op.execute("DROP FUNCTION fill_in_tokenizer()")
    else:
        op.execute("DROP TRIGGER fill_in_tokenizer")
    op.drop_index("ix_chunks_waiting", "chunks")
    for name in ("tokenizer_fingerprint", "longest_sequence", "highest_token"):
        op.drop_column("chunks", name)
    _create_index(["model", "due_at", "id"])


def _create_index(columns: list[str]) -> None:
    waiting = sa.text("state = 'waiting'")
    op.create_index("ix_chunks_waiting", "chunks", columns, postgresql_where=waiting, sqlite_where=waiting)
