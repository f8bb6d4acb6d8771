"""the schema of version 0.2.0

Databases of earlier versions are upgraded by the migrations of version 0.2.0 first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = None
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
SECONDS = sa.Float(53)


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
        "creation_keys",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("made_id", sa.String(length=40), nullable=False),
        sa.Column("expires_at", SECONDS, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_creation_keys"),
    )
    op.create_index("ix_creation_keys_expires_at", "creation_keys", ["expires_at"])
    op.create_index("ix_creation_keys_made_id", "creation_keys", ["made_id"])
    op.create_table(
        "file_batches",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("endpoint", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("input_file_id", sa.String(length=40), nullable=False),
        sa.Column("output_file_id", sa.String(length=40)),
        sa.Column("error_file_id", sa.String(length=40)),
        sa.Column("completion_window", sa.String(length=16), nullable=False),
        sa.Column("created_at", SECONDS, nullable=False),
        sa.Column("in_progress_at", SECONDS),
        sa.Column("cancelling_at", SECONDS),
        sa.Column("finalizing_at", SECONDS),
        sa.Column("ended_at", SECONDS),
        sa.Column("expires_at", SECONDS, nullable=False),
        sa.Column("remove_at", SECONDS),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("webhook", sa.JSON(none_as_null=True)),
        sa.Column("error_message", sa.Text()),
        sa.Column("total_lines", sa.Integer(), nullable=False),
        sa.Column("input_bytes", sa.BigInteger(), nullable=False),
        sa.Column("read_bytes", sa.BigInteger(), nullable=False),
        sa.Column("read_lines", sa.Integer(), nullable=False),
        sa.Column("written_lines", sa.Integer(), nullable=False),
        sa.Column("completed_lines", sa.Integer(), nullable=False),
        sa.Column("failed_lines", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("is_late", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("next_step_at", SECONDS, nullable=False),
        sa.Column("served_at", SECONDS),
        sa.PrimaryKeyConstraint("id", name="pk_file_batches"),
    )
    op.create_index("ix_file_batches_input_file_id", "file_batches", ["input_file_id"])
    _partial_index(
        "ix_file_batches_next_step_at",
        "file_batches",
        ["next_step_at"],
        "status = 'validating' OR status = 'in_progress' OR status = 'cancelling' OR status = 'finalizing'",
    )
    _partial_index("ix_file_batches_remove_at", "file_batches", ["remove_at"], "remove_at IS NOT NULL")
    op.create_index("ix_file_batches_tenant_id", "file_batches", ["tenant", "id"])
    op.create_index("ix_file_batches_tenant_served_at", "file_batches", ["tenant", "served_at"])
    op.create_table(
        "files",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("filename", sa.String(length=512), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("created_at", SECONDS, nullable=False),
        sa.Column("received_at", SECONDS),
        sa.Column("expires_at", SECONDS),
        sa.Column("remove_at", SECONDS),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    _partial_index("ix_files_expires_at", "files", ["expires_at"], "expires_at IS NOT NULL")
    _partial_index("ix_files_received_at", "files", ["received_at"], "received_at IS NOT NULL")
    _partial_index("ix_files_remove_at", "files", ["remove_at"], "remove_at IS NOT NULL")
    op.create_index("ix_files_tenant_id", "files", ["tenant", "id"])
    op.create_table(
        "lanes",
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("interactive", sa.Boolean(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("virtual_time", SECONDS, nullable=False),
        sa.PrimaryKeyConstraint("model", "tenant", "interactive", name="pk_lanes"),
    )
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
    _partial_index("ix_prefixes_maybe_unused", "prefixes", ["id"], "maybe_unused")
    op.create_table(
        "provenances",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("recorded_at", SECONDS, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_provenances"),
    )
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("weight", SECONDS, server_default="1", nullable=False),
        sa.Column("max_waiting_tokens", sa.BigInteger()),
        sa.Column("requests_per_second", sa.Integer()),
        sa.Column("requests_per_minute", sa.Integer()),
        sa.Column("created_at", SECONDS, nullable=False),
        sa.Column("waiting_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("recount_at", SECONDS, server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tenants"),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("event", sa.String(length=32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("due_at", SECONDS, nullable=False),
        sa.Column("claim_id", sa.String(length=32)),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("failures", sa.SmallInteger(), nullable=False),
        sa.Column("called_for", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", SECONDS, nullable=False),
        sa.Column("remove_at", SECONDS, nullable=False),
        sa.Column("traceparent", sa.String(length=55)),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
        sa.UniqueConstraint("job_id", name="uq_webhook_deliveries_job_id"),
    )
    _partial_index("ix_webhook_deliveries_claimed", "webhook_deliveries", ["tenant", "host"], "claim_id IS NOT NULL")
    _partial_index(
        "ix_webhook_deliveries_pending", "webhook_deliveries", ["tenant", "due_at", "id"], "state = 'pending'"
    )
    _partial_index(
        "ix_webhook_deliveries_pending_host",
        "webhook_deliveries",
        ["tenant", "host", "due_at", "id"],
        "state = 'pending'",
    )
    _partial_index("ix_webhook_deliveries_remove_at", "webhook_deliveries", ["remove_at"], "state != 'pending'")
    op.create_table(
        "webhook_endpoints",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("url_sha256", sa.String(length=64), nullable=False),
        sa.Column("failing_since", SECONDS, nullable=False),
        sa.Column("disabled_at", SECONDS),
        sa.Column("forget_at", SECONDS, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "url_sha256", name="pk_webhook_endpoints"),
    )
    op.create_index("ix_webhook_endpoints_forget_at", "webhook_endpoints", ["forget_at"])
    op.create_table(
        "webhook_secrets",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("secret", sa.String(length=128), nullable=False),
        sa.Column("created_at", SECONDS, nullable=False),
        sa.Column("expires_at", SECONDS),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_secrets"),
    )
    op.create_index("ix_webhook_secrets_tenant", "webhook_secrets", ["tenant"])
    _partial_index("uq_webhook_secrets_current", "webhook_secrets", ["tenant"], "expires_at IS NULL", unique=True)
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("context_length", sa.Integer(), nullable=False),
        sa.Column("vocabulary", sa.Integer(), nullable=False),
        sa.Column("tokenizer_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("delimiter", sa.Integer()),
        sa.Column("weights_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=255), nullable=False),
        sa.Column("dtype", sa.String(length=32), nullable=False),
        sa.Column("started_at", SECONDS, nullable=False),
        sa.Column("last_seen", SECONDS, nullable=False),
        sa.Column("tokens_per_second", SECONDS),
        sa.Column("planning", sa.JSON(none_as_null=True)),
        sa.Column("estimate_ratio", SECONDS),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", SECONDS, nullable=False),
        sa.Column("expires_at", SECONDS),
        sa.Column("revoked_at", SECONDS),
        sa.Column("last_used_at", SECONDS),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_api_keys_tenant_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("custom_id", sa.String(length=512)),
        sa.Column("job_id", sa.String(length=40)),
        sa.Column("refusal", sa.LargeBinary()),
        sa.Column("ranking", sa.JSON(none_as_null=True)),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["file_batches.id"], name="fk_batch_lines_batch_id_file_batches", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_batch_lines"),
    )
    _partial_index("ix_batch_lines_job_id", "batch_lines", ["job_id"], "job_id IS NOT NULL")
    _partial_index(
        "uq_batch_lines_custom_id", "batch_lines", ["batch_id", "custom_id"], "custom_id IS NOT NULL", unique=True
    )
    op.create_table(
        "file_parts",
        sa.Column("file_id", sa.String(length=40), nullable=False),
        sa.Column("first_byte", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name="fk_file_parts_file_id_files", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("file_id", "first_byte", name="pk_file_parts"),
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
        sa.Column("started_at", SECONDS),
        sa.Column("finished_at", SECONDS),
        sa.Column("expires_at", SECONDS),
        sa.Column("received_at", SECONDS),
        sa.Column("remove_at", SECONDS),
        sa.Column("label_token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("error_code", sa.String(length=64)),
        sa.Column("error_message", sa.Text()),
        sa.Column("webhook", sa.JSON(none_as_null=True)),
        sa.Column("notice_key", sa.LargeBinary()),
        sa.Column("item_labels", sa.LargeBinary()),
        sa.Column("traceparent", sa.String(length=55)),
        sa.ForeignKeyConstraint(["prefix_id"], ["prefixes.id"], name="fk_jobs_prefix_id_prefixes"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    _partial_index("ix_jobs_expires_at", "jobs", ["expires_at"], "finished_at IS NULL AND expires_at IS NOT NULL")
    op.create_index("ix_jobs_prefix_id", "jobs", ["prefix_id"])
    _partial_index("ix_jobs_received_at", "jobs", ["received_at"], "received_at IS NOT NULL")
    _partial_index("ix_jobs_remove_at", "jobs", ["remove_at"], "remove_at IS NOT NULL")
    op.create_index("ix_jobs_tenant_id", "jobs", ["tenant", "id"])
    op.create_table(
        "webhook_attempts",
        sa.Column("delivery_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_at", SECONDS, nullable=False),
        sa.Column("seconds", SECONDS),
        sa.Column("reason", sa.String(length=32)),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("status", sa.SmallInteger()),
        sa.Column("response", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["delivery_id"],
            ["webhook_deliveries.id"],
            name="fk_webhook_attempts_delivery_id_webhook_deliveries",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("delivery_id", "number", name="pk_webhook_attempts"),
    )
    op.create_table(
        "chunks",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("prefix_id", ROW_ID, nullable=False),
        sa.Column("due_at", SECONDS, nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("batch_id", sa.String(length=32)),
        sa.Column("first_item", sa.Integer(), nullable=False),
        sa.Column("item_count", sa.Integer(), nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("failures", sa.SmallInteger(), nullable=False),
        sa.Column("batch_limit", sa.Integer()),
        sa.Column("tokenizer_fingerprint", sa.String(length=64), server_default=sa.text("''"), nullable=False),
        sa.Column("longest_sequence", sa.Integer(), server_default="0", nullable=False),
        sa.Column("highest_token", sa.Integer(), server_default="0", nullable=False),
        sa.Column("interactive", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_chunks_job_id_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_chunks"),
        postgresql_with={"autovacuum_vacuum_scale_factor": 0.01},
    )
    _partial_index("ix_chunks_batch_id", "chunks", ["batch_id"], "state = 'claimed'")
    op.create_index("ix_chunks_job_id_first_item", "chunks", ["job_id", "first_item"])
    _partial_index(
        "ix_chunks_waiting", "chunks", ["model", "tokenizer_fingerprint", "due_at", "id"], "state = 'waiting'"
    )
    _partial_index("ix_chunks_waiting_group", "chunks", ["model", "prefix_id", "due_at", "id"], "state = 'waiting'")
    op.create_index(
        "ix_chunks_waiting_interactive",
        "chunks",
        ["model", "tokenizer_fingerprint", "due_at", "id"],
        postgresql_where=sa.text("state = 'waiting' AND interactive"),
        sqlite_where=sa.text("state = 'waiting' AND interactive = 1"),
    )
    _partial_index(
        "ix_chunks_waiting_lane",
        "chunks",
        ["model", "tenant", "interactive", "tokenizer_fingerprint", "due_at", "id"],
        "state = 'waiting'",
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
        sa.Column("continuations", sa.LargeBinary()),
        sa.ForeignKeyConstraint(
            ["chunk_id"], ["chunks.id"], name="fk_chunk_inputs_chunk_id_chunks", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("chunk_id", name="pk_chunk_inputs"),
    )
    op.create_table(
        "chunk_scores",
        sa.Column("chunk_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("logits", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary()),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("targets", sa.LargeBinary()),
        sa.Column("provenance_id", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["chunk_id"], ["chunks.id"], name="fk_chunk_scores_chunk_id_chunks", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("chunk_id", name="pk_chunk_scores"),
    )

    is_postgresql = op.get_bind().dialect.name == "postgresql"
    now = "extract(epoch from now())" if is_postgresql else "(julianday('now') - 2440587.5) * 86400.0"
    op.execute(f"INSERT INTO tenants (name, created_at) VALUES ('default', {now})")


def _partial_index(name: str, table: str, columns: list[str], condition: str, *, unique: bool = False) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, unique=unique, postgresql_where=where, sqlite_where=where)


def downgrade() -> None:
    for table in (
        "chunk_scores",
        "chunk_inputs",
        "idempotency_keys",
        "chunks",
        "webhook_attempts",
        "jobs",
        "file_parts",
        "batch_lines",
        "api_keys",
        "workers",
        "webhook_secrets",
        "webhook_endpoints",
        "webhook_deliveries",
        "tenants",
        "provenances",
        "prefixes",
        "lanes",
        "files",
        "file_batches",
        "creation_keys",
        "batches",
    ):
        op.drop_table(table)
