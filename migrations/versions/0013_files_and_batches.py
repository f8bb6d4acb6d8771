"""files, and batches of the requests in them

The previous version works with this schema: it knows neither files nor batches, and its workers score the jobs of a
batch like all others. Batches wait while no API process of this version runs.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

OPEN = "status = 'validating' OR status = 'in_progress' OR status = 'cancelling' OR status = 'finalizing'"


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("filename", sa.String(512), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("received_at", sa.Float(53)),
        sa.Column("expires_at", sa.Float(53)),
        sa.Column("remove_at", sa.Float(53)),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_tenant_id", "files", ["tenant", "id"])
    for column in ("received_at", "expires_at", "remove_at"):
        _partial_index(f"ix_files_{column}", "files", [column], f"{column} IS NOT NULL")
    op.create_table(
        "file_parts",
        sa.Column("file_id", sa.String(40), nullable=False),
        sa.Column("first_byte", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], ondelete="CASCADE", name="fk_file_parts_file_id_files"),
        sa.PrimaryKeyConstraint("file_id", "first_byte", name="pk_file_parts"),
    )
    op.create_table(
        "creation_keys",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("made_id", sa.String(40), nullable=False),
        sa.Column("expires_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_creation_keys"),
    )
    op.create_index("ix_creation_keys_made_id", "creation_keys", ["made_id"])
    op.create_index("ix_creation_keys_expires_at", "creation_keys", ["expires_at"])
    op.create_table(
        "file_batches",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("endpoint", sa.String(32), nullable=False),
        sa.Column("status", sa.String(12), nullable=False),
        sa.Column("input_file_id", sa.String(40), nullable=False),
        sa.Column("output_file_id", sa.String(40)),
        sa.Column("error_file_id", sa.String(40)),
        sa.Column("completion_window", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("in_progress_at", sa.Float(53)),
        sa.Column("cancelling_at", sa.Float(53)),
        sa.Column("finalizing_at", sa.Float(53)),
        sa.Column("ended_at", sa.Float(53)),
        sa.Column("expires_at", sa.Float(53), nullable=False),
        sa.Column("remove_at", sa.Float(53)),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("webhook", sa.JSON()),
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
        sa.Column("is_late", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("next_step_at", sa.Float(53), nullable=False),
        sa.Column("served_at", sa.Float(53)),
        sa.PrimaryKeyConstraint("id", name="pk_file_batches"),
    )
    op.create_index("ix_file_batches_tenant_id", "file_batches", ["tenant", "id"])
    op.create_index("ix_file_batches_tenant_served_at", "file_batches", ["tenant", "served_at"])
    op.create_index("ix_file_batches_input_file_id", "file_batches", ["input_file_id"])
    _partial_index("ix_file_batches_next_step_at", "file_batches", ["next_step_at"], OPEN)
    _partial_index("ix_file_batches_remove_at", "file_batches", ["remove_at"], "remove_at IS NOT NULL")
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("custom_id", sa.String(512)),
        sa.Column("job_id", sa.String(40)),
        sa.Column("refusal", sa.LargeBinary()),
        sa.Column("ranking", sa.JSON()),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["file_batches.id"], ondelete="CASCADE", name="fk_batch_lines_batch_id_file_batches"
        ),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_batch_lines"),
    )
    _partial_index(
        "uq_batch_lines_custom_id", "batch_lines", ["batch_id", "custom_id"], "custom_id IS NOT NULL", unique=True
    )
    _partial_index("ix_batch_lines_job_id", "batch_lines", ["job_id"], "job_id IS NOT NULL")


def _partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, postgresql_where=condition, sqlite_where=condition)


def downgrade() -> None:
    for table in ("batch_lines", "file_batches", "creation_keys", "file_parts", "files"):
        op.drop_table(table)
