"""The tables. Portable types; times are Unix seconds (double precision) on the database's clock.

``chunks`` is the hot table and stays narrow: what a claim orders and filters by. Token ids lie beside it, read once
the choice is made. A prefix is stored once for all jobs that share it, and is the group key of their chunks.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    literal_column,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite counts up by itself only in a column that is exactly INTEGER PRIMARY KEY.
RowId = BigInteger().with_variant(Integer, "sqlite")
Seconds = Float(53)


class ChunkState(StrEnum):
    """Where a chunk is: waiting -> claimed -> done, back to waiting when its batch is lost, dropped when its job
    ends without it. Chunks of an upload are staged until all of it has come; no worker sees them.
    """

    STAGED = "staged"
    WAITING = "waiting"
    CLAIMED = "claimed"
    DONE = "done"
    DROPPED = "dropped"


prefixes = Table(
    "prefixes",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("tokenizer_fingerprint", String(64), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("tokens", LargeBinary, nullable=False),
    # Set when a job that used it is removed; the sweep looks only at these.
    Column("maybe_unused", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("tenant", "tokenizer_fingerprint", "sha256"),
)
Index(
    "ix_prefixes_maybe_unused",
    prefixes.c.id,
    postgresql_where=prefixes.c.maybe_unused,
    sqlite_where=prefixes.c.maybe_unused,
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("model", String(255), nullable=False),
    Column("origin", String(8), nullable=False),
    Column("priority", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("prefix_id", RowId, ForeignKey("prefixes.id"), nullable=False, index=True),
    Column("total_items", Integer, nullable=False),
    Column("scored_items", Integer, nullable=False),
    Column("remaining_chunks", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("created_at", Seconds, nullable=False),
    Column("started_at", Seconds),
    Column("finished_at", Seconds),
    Column("expires_at", Seconds),
    # Of an upload: when its receiver was last alive, then when all of it had come; null once all its chunks wait.
    Column("received_at", Seconds),
    # Set at the job's end. From then on it is gone for every reader, and the sweep takes its rows away.
    Column("remove_at", Seconds),
    Column("label_token_ids", LargeBinary, nullable=False),
    Column("options", JSON, nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("warnings", JSON, nullable=False),
    Column("error_code", String(64)),
    Column("error_message", Text),
    # {url, host, events} of a job that asked for a webhook.
    Column("webhook", JSON(none_as_null=True)),
)
Index("ix_jobs_tenant_id", jobs.c.tenant, jobs.c.id)
Index(
    "ix_jobs_expires_at",
    jobs.c.expires_at,
    postgresql_where=jobs.c.finished_at.is_(None) & jobs.c.expires_at.is_not(None),
    sqlite_where=jobs.c.finished_at.is_(None) & jobs.c.expires_at.is_not(None),
)
Index(
    "ix_jobs_received_at",
    jobs.c.received_at,
    postgresql_where=jobs.c.received_at.is_not(None),
    sqlite_where=jobs.c.received_at.is_not(None),
)
Index(
    "ix_jobs_remove_at",
    jobs.c.remove_at,
    postgresql_where=jobs.c.remove_at.is_not(None),
    sqlite_where=jobs.c.remove_at.is_not(None),
)

chunks = Table(
    "chunks",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("job_id", String(40), ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("model", String(255), nullable=False),
    Column("prefix_id", RowId, nullable=False),
    Column("due_at", Seconds, nullable=False),
    Column("state", String(8), nullable=False),
    Column("batch_id", String(32)),
    Column("first_item", Integer, nullable=False),
    Column("item_count", Integer, nullable=False),
    # What its rows take, as scoring.work counts; of a chunk accepted by the version before 0003, all of its sequences.
    Column("token_count", Integer, nullable=False),
    # How often a batch that held nothing but this chunk was lost, and how many chunks its next batch may hold.
    Column("failures", SmallInteger, nullable=False),
    Column("batch_limit", Integer),
    # What a chunk needs of its worker: the tokenizer whose ids it holds, as much context, a larger vocabulary. 0: not
    # known, of a chunk accepted by the version before. The defaults are for that version's API; see migration 0002.
    Column("tokenizer_fingerprint", String(64), nullable=False, server_default=text("''")),
    Column("longest_sequence", Integer, nullable=False, server_default="0"),
    Column("highest_token", Integer, nullable=False, server_default="0"),
    # Whether its job is: such chunks are claimed apart from others, and between the steps of others.
    Column("interactive", Boolean, nullable=False, server_default=false()),
    # Every claim leaves dead rows behind; let them be vacuumed long before a fifth of the table is dead.
    postgresql_with={"autovacuum_vacuum_scale_factor": 0.01},
)
# Written into the statement, never a parameter: a generic plan does not see parameters, so no partial index either.
WAITING = chunks.c.state == literal_column(f"'{ChunkState.WAITING.value}'")
CLAIMED = chunks.c.state == literal_column(f"'{ChunkState.CLAIMED.value}'")
Index(
    "ix_chunks_waiting",
    chunks.c.model,
    chunks.c.tokenizer_fingerprint,
    chunks.c.due_at,
    chunks.c.id,
    postgresql_where=WAITING,
    sqlite_where=WAITING,
)
# The same of interactive chunks, which a busy worker looks for behind any backlog of others.
Index(
    "ix_chunks_waiting_interactive",
    chunks.c.model,
    chunks.c.tokenizer_fingerprint,
    chunks.c.due_at,
    chunks.c.id,
    postgresql_where=WAITING & chunks.c.interactive,
    sqlite_where=WAITING & chunks.c.interactive,
)
# Of one tenant, for whoever's turn it is: see jobs.queue.fair_shares.
Index(
    "ix_chunks_waiting_lane",
    chunks.c.model,
    chunks.c.tenant,
    chunks.c.interactive,
    chunks.c.tokenizer_fingerprint,
    chunks.c.due_at,
    chunks.c.id,
    postgresql_where=WAITING,
    sqlite_where=WAITING,
)
# Without the tokenizer: a prefix is of one.
Index(
    "ix_chunks_waiting_group",
    chunks.c.model,
    chunks.c.prefix_id,
    chunks.c.due_at,
    chunks.c.id,
    postgresql_where=WAITING,
    sqlite_where=WAITING,
)
Index(
    "ix_chunks_batch_id",
    chunks.c.batch_id,
    postgresql_where=CLAIMED,
    sqlite_where=CLAIMED,
)
Index("ix_chunks_job_id_first_item", chunks.c.job_id, chunks.c.first_item)

lanes = Table(
    "lanes",
    metadata,
    Column("model", String(255), primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("interactive", Boolean, primary_key=True),
    Column("is_open", Boolean, nullable=False),
    Column("virtual_time", Seconds, nullable=False),
)

chunk_inputs = Table(
    "chunk_inputs",
    metadata,
    Column("chunk_id", RowId, ForeignKey("chunks.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("rows", LargeBinary, nullable=False),
)

chunk_scores = Table(
    "chunk_scores",
    metadata,
    Column("chunk_id", RowId, ForeignKey("chunks.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    # float32, little-endian, [items, labels].
    Column("logits", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary),
    Column("cached_tokens", Integer, nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("worker_id", String(128), nullable=False),
    Column("lease_until", Seconds, nullable=False, index=True),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body_hash", String(64), nullable=False),
    # Deferred: the key is taken first, so that of two requests with one key the second waits before it does any work.
    Column(
        "job_id",
        String(40),
        ForeignKey("jobs.id", ondelete="CASCADE", deferrable=True, initially="DEFERRED"),
        nullable=False,
        index=True,
    ),
    Column("expires_at", Seconds, nullable=False, index=True),
)

workers = Table(
    "workers",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("model", String(255), nullable=False),
    Column("context_length", Integer, nullable=False),
    Column("vocabulary", Integer, nullable=False),
    Column("tokenizer_fingerprint", String(64), nullable=False),
    Column("delimiter", Integer),
    Column("weights_fingerprint", String(64), nullable=False),
    Column("device", String(255), nullable=False),
    Column("dtype", String(32), nullable=False),
    Column("started_at", Seconds, nullable=False),
    Column("last_seen", Seconds, nullable=False),
    # As it measured lately; null until it has.
    Column("tokens_per_second", Float(53)),
)

tenants = Table(
    "tenants",
    metadata,
    Column("name", String(64), primary_key=True),
    # Shares are by weight: see jobs.queue.fair_shares.
    Column("weight", Float(53), nullable=False, server_default="1"),
    Column("max_waiting_tokens", BigInteger),
    Column("requests_per_second", Integer),
    Column("requests_per_minute", Integer),
    Column("created_at", Seconds, nullable=False),
    # Of a tenant with a quota: never less than what waits, and when that may be counted again. See jobs.tenancy.quotas.
    Column("waiting_tokens", BigInteger, nullable=False, server_default="0"),
    Column("recount_at", Seconds, nullable=False, server_default="0"),
)

api_keys = Table(
    "api_keys",
    metadata,
    # The public part of the key, by which it is found.
    Column("id", String(16), primary_key=True),
    Column("tenant", String(64), ForeignKey("tenants.name"), nullable=False),
    Column("name", String(128), nullable=False),
    Column("secret_sha256", String(64), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("created_at", Seconds, nullable=False),
    Column("expires_at", Seconds),
    Column("revoked_at", Seconds),
    Column("last_used_at", Seconds),
)
