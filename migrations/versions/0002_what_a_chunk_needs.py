"""what a chunk needs of its worker: its tokenizer, its context, its vocabulary

Workers claim by model and tokenizer from here on, and take no chunk that their model is too small for.

Against this schema the version before works on, so this goes first, then the workers are replaced, then the API:

- An API of the version before stores chunks that do not say what they need. A trigger fills in the tokenizer, from the
  prefix; the numbers stay 0, "not known", which keeps nobody out, as before. (Its ``/readyz`` answers 503 from here on,
  because it insists on its own revision. It goes on taking jobs, but a load balancer takes it out: replace it soon.)
- A worker of the version before goes on claiming by model alone, whatever its tokenizer. As long as one runs, the
  tokenizer must stay what it is: first the software, then the checkpoint. Its claims are right and only slower, for the
  index has the tokenizer in it. One that is started now waits until it is replaced.

Only what is unfinished is filled in; what a finished chunk would have needed is of no interest. The transaction locks
``chunks`` from its first statement, so submissions and claims wait for the backlog to be rewritten and its index to be
built. Renewals do not: running batches keep their leases.

The trigger and the defaults may go once no version before this one runs.
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
