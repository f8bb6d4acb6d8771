"""the catalogue of models, which of them a tenant may use, and which version of one a worker serves

The previous version works with this schema. It serves the model of its environment alone, to all tenants.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

SERVED = sa.text("retired_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("aliases", sa.JSON(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("card", sa.JSON(), nullable=False),
        sa.Column("added_at", sa.Float(53), nullable=False),
        sa.Column("retired_at", sa.Float(53)),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
    )
    op.create_index("ix_models_served", "models", ["name"], unique=True, postgresql_where=SERVED, sqlite_where=SERVED)
    op.add_column("workers", sa.Column("version", sa.Integer()))
    op.add_column("tenants", sa.Column("models", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    op.drop_column("tenants", "models")
    op.drop_column("workers", "version")
    op.drop_table("models")
