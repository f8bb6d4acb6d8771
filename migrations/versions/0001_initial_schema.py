"""initial schema"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
SECONDS = sa.Float(precision=53)


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("worker_id", sa.String(length=128), nullable=False),
        sa.Column("lease_until", SECONDS, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
    )
    op.create_index("ix_batches_lease_until", "batches", ["lease_until"])

    op.create_table(
        "prefixes",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("tokenizer_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("tokens", sa.LargeBinary(), nullable=False),
        sa.Column("maybe_unused", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_prefixes"),
        sa.UniqueConstraint(
            "tenant", "tokenizer_fingerprint", "sha256", name="uq_prefixes_tenant_tokenizer_fingerprint_sha256"
        ),
    )
    op.create_index(
        "ix_prefixes_maybe_unused",
        "prefixes",
        ["id"],
        postgresql_where=sa.text("maybe_unused"),
        sqlite_where=sa.text("maybe_unused"),
    )

    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("context_length", sa.Integer(), nullable=False),
        sa.Column("vocabulary", sa.Integer(), nullable=False),
        sa.Column("tokenizer_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("delimiter", sa.Integer(), nullable=True),
        sa.Column("weights_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=255), nullable=False),
        sa.Column("dtype", sa.String(length=32), nullable=False),
        sa.Column("started_at", SECONDS, nullable=False),
        sa.Column("last_seen", SECONDS, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("origin", sa.String(length=8), nullable=False),
        sa.Column("priority", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("prefix_id", ROW_ID, nullable=False),
        sa.Column("total_items", sa.Integer(), nullable=False),
        sa.Column("scored_items", sa.Integer(), nullable=False),
        sa.Column("remaining_chunks", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("created_at", SECONDS, nullable=False),
        sa.Column("started_at", SECONDS, nullable=True),
        sa.Column("finished_at", SECONDS, nullable=True),
        sa.Column("expires_at", SECONDS, nullable=True),
        sa.Column("remove_at", SECONDS, nullable=True),
        sa.Column("label_token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["prefix_id"], ["prefixes.id"], name="fk_jobs_prefix_id_prefixes"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index(
        "ix_jobs_expires_at",
        "jobs",
        ["expires_at"],
        postgresql_where=sa.text("finished_at IS NULL AND expires_at IS NOT NULL"),
        sqlite_where=sa.text("finished_at IS NULL AND expires_at IS NOT NULL"),
    )
    op.create_index("ix_jobs_prefix_id", "jobs", ["prefix_id"])
    op.create_index(
        "ix_jobs_remove_at",
        "jobs",
        ["remove_at"],
        postgresql_where=sa.text("remove_at IS NOT NULL"),
        sqlite_where=sa.text("remove_at IS NOT NULL"),
    )
    op.create_index("ix_jobs_tenant_id", "jobs", ["tenant", "id"])

    op.create_table(
        "chunks",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("prefix_id", ROW_ID, nullable=False),
        sa.Column("due_at", SECONDS, nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("batch_id", sa.String(length=32), nullable=True),
        sa.Column("first_item", sa.Integer(), nullable=False),
        sa.Column("item_count", sa.Integer(), nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("failures", sa.SmallInteger(), nullable=False),
        sa.Column("batch_limit", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_chunks_job_id_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_chunks"),
        postgresql_with={"autovacuum_vacuum_scale_factor": 0.01},
    )
    op.create_index(
        "ix_chunks_batch_id",
        "chunks",
        ["batch_id"],
        postgresql_where=sa.text("state = 'claimed'"),
        sqlite_where=sa.text("state = 'claimed'"),
    )
    op.create_index("ix_chunks_job_id_first_item", "chunks", ["job_id", "first_item"])
    op.create_index(
        "ix_chunks_waiting",
        "chunks",
        ["model", "due_at", "id"],
        postgresql_where=sa.text("state = 'waiting'"),
        sqlite_where=sa.text("state = 'waiting'"),
    )
    op.create_index(
        "ix_chunks_waiting_group",
        "chunks",
        ["model", "prefix_id", "due_at", "id"],
        postgresql_where=sa.text("state = 'waiting'"),
        sqlite_where=sa.text("state = 'waiting'"),
    )

    op.create_table(
        "idempotency_keys",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("expires_at", SECONDS, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
            name="fk_idempotency_keys_job_id_jobs",
            ondelete="CASCADE",
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_expires_at", "idempotency_keys", ["expires_at"])
    op.create_index("ix_idempotency_keys_job_id", "idempotency_keys", ["job_id"])

    op.create_table(
        "chunk_inputs",
        sa.Column("chunk_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("rows", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chunk_id"], ["chunks.id"], name="fk_chunk_inputs_chunk_id_chunks", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("chunk_id", name="pk_chunk_inputs"),
    )
    op.create_table(
        "chunk_scores",
        sa.Column("chunk_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("logits", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=True),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chunk_id"], ["chunks.id"], name="fk_chunk_scores_chunk_id_chunks", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("chunk_id", name="pk_chunk_scores"),
    )


def downgrade() -> None:
    for table in (
        "workers",
        "idempotency_keys",
        "batches",
        "chunk_scores",
        "chunk_inputs",
        "chunks",
        "jobs",
        "prefixes",
    ):
        op.drop_table(table)
