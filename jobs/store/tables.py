"""The tables, with portable types. Times are Unix seconds (double precision) on the database's clock.

``chunks`` is read most, so it holds only what claims filter and order by. The token ids of chunks are in a table of
their own, and are read after a claim has chosen its chunks. A prefix is stored once for all jobs that share it, and is
the group key of their chunks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
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
    true,
)

from scoring.sources import CONTENT_BYTES

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite generates ids only for a column that is exactly INTEGER PRIMARY KEY.
RowId = BigInteger().with_variant(Integer, "sqlite")
Seconds = Float(53)


CONTINUED = 2**30
"""Is added to the longest sequence of a chunk with continuations. Versions that know none find it too long to claim."""


def partial_index(name: str, *columns: Column[Any], where: ColumnElement[bool], unique: bool = False) -> None:
    """Give a table an index of those rows that meet a condition.

    The condition, and that of a query that is to use the index, has literals in place of parameters: a plan that holds
    for all values of parameters can't use a partial index.
    """
    Index(name, *columns, unique=unique, postgresql_where=where, sqlite_where=where)


class ChunkState(StrEnum):
    """The state of a chunk."""

    STAGED = "staged"  # of an upload that is not released yet; no worker sees it
    WAITING = "waiting"  # to be claimed
    CLAIMED = "claimed"  # part of a batch; it waits again if the batch is lost
    DONE = "done"  # scored
    DROPPED = "dropped"  # its job ended before it was scored


prefixes = Table(
    "prefixes",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("tokenizer_fingerprint", String(64), nullable=False),  # ModelCard.work_key, as in chunks
    Column("sha256", String(64), nullable=False),
    Column("tokens", LargeBinary, nullable=False),
    Column("work", Integer),  # of computing it: see jobs.store.prefix_work; null: version 0.2.0 has stored it
    # The worker that has claimed work behind it last, and since when that is known: see jobs.queue.homes.
    Column("home", String(128)),
    Column("home_at", Seconds),
    # Set when a job that used the prefix is removed. The sweep checks only these prefixes.
    Column("maybe_unused", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("tenant", "tokenizer_fingerprint", "sha256"),
)
partial_index("ix_prefixes_maybe_unused", prefixes.c.id, where=prefixes.c.maybe_unused)

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
    # Of an upload: when its receiver was last alive; once it is accepted, when that was; null once all chunks wait.
    Column("received_at", Seconds),
    # Set when the job ends: the end of its retention. After that no reader sees it, and the sweep removes its rows. Or
    # DELETED.
    Column("remove_at", Seconds),
    Column("label_token_ids", LargeBinary, nullable=False),  # with continuations, their places: see scoring.prepare
    Column("options", JSON, nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("warnings", JSON, nullable=False),
    Column("error_code", String(64)),
    Column("error_message", Text),
    Column("webhook", JSON(none_as_null=True)),  # {url, host, events}
    # Of a call: signs its result in the notice of its end. Besides this row, only the request that waits knows it.
    Column("notice_key", LargeBinary),
    Column("item_labels", LargeBinary),  # which of the labels each item has; null: all of them
    Column("form", JSON(none_as_null=True)),  # see Submission.form
    Column("traceparent", String(55)),  # of the request that submitted it, as W3C writes it; null: it is not traced
    Column("stored_bytes", BigInteger, nullable=False, server_default="0"),  # of its tokens, and of all of its scores
    Column("ends_durably", Boolean, nullable=False, server_default=true()),  # see Submission.ends_durably
    Column("reused_items", Integer, nullable=False, server_default="0"),  # that are not computed: see scoring.sources
)
DELETED = 0.0
"""The ``remove_at`` of what its owner has deleted. With such a job, the scores go that are kept of its items."""
# For lists. Literals, as below. The conditions name no column that a claim changes: then PostgreSQL would have to enter
# the new version of each claimed job, calls among them, into all indexes of the table.
LISTED = jobs.c.origin == literal_column("'job'")
"""SQL condition: lists show the job, since it is neither a call nor a line of a batch."""
IS_CALL = jobs.c.origin == literal_column("'call'")
"""SQL condition: the job is a call, such as of ``/v1/score``."""
FAILED = jobs.c.error_code.is_not(None)
"""SQL condition: the job has failed."""
HAS_ENDED = jobs.c.finished_at.is_not(None)
"""SQL condition: the job has ended, for whatever reason."""
COUNTED_BYTES = 4_096
"""The bytes of the smallest job that counts in what its tenant stores. The rows of any job take about as many."""
COUNTED = jobs.c.stored_bytes >= literal_column(str(COUNTED_BYTES))
"""SQL condition: the job counts in what its tenant stores."""
partial_index("ix_jobs_stored_bytes", jobs.c.tenant, jobs.c.origin, jobs.c.stored_bytes, where=COUNTED)
for _name, _condition in {
    "ix_jobs_listed": LISTED,
    "ix_jobs_calls": IS_CALL,
    "ix_jobs_listed_unfinished": LISTED & ~HAS_ENDED,
    "ix_jobs_failed": FAILED,
}.items():
    partial_index(_name, jobs.c.tenant, jobs.c.id, where=_condition)
partial_index("ix_jobs_expires_at", jobs.c.expires_at, where=~HAS_ENDED & jobs.c.expires_at.is_not(None))
partial_index("ix_jobs_received_at", jobs.c.received_at, where=jobs.c.received_at.is_not(None))
partial_index("ix_jobs_remove_at", jobs.c.remove_at, where=jobs.c.remove_at.is_not(None))

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
    # Work of the rows in tokens, as scoring.work counts; of chunks from before 0003, tokens of all sequences.
    Column("token_count", Integer, nullable=False),
    Column("failures", SmallInteger, nullable=False),  # batches that held only this chunk and failed
    Column("batch_limit", Integer),  # most chunks in its next batch; null for no limit
    # What a worker must serve to score the chunk: this tokenizer (ModelCard.work_key, which also tells versions of a
    # model apart), as much context, a larger vocabulary. The defaults are of versions before 0.2.0, which did not say
    # what a chunk needs.
    Column("tokenizer_fingerprint", String(64), nullable=False, server_default=text("''")),
    # CONTINUED is added to the length of a chunk with continuations.
    Column("longest_sequence", Integer, nullable=False, server_default="0"),
    Column("highest_token", Integer, nullable=False, server_default="0"),
    # Whether its job is interactive. Such chunks are claimed apart, also between the steps of other batches.
    Column("interactive", Boolean, nullable=False, server_default=false()),
    # The worker that it is left to, and until when: see jobs.queue.homes. Null: anybody may claim it.
    Column("home", String(128)),
    Column("home_until", Seconds),
    # Every claim leaves dead rows. By default they would be vacuumed only when a fifth of the table is dead.
    postgresql_with={"autovacuum_vacuum_scale_factor": 0.01},
)
# Literals, not parameters: a generic plan does not know the values of parameters, so it can't use a partial index.
WAITING = chunks.c.state == literal_column(f"'{ChunkState.WAITING.value}'")
CLAIMED = chunks.c.state == literal_column(f"'{ChunkState.CLAIMED.value}'")
STAGED = chunks.c.state == literal_column(f"'{ChunkState.STAGED.value}'")
DONE = chunks.c.state == literal_column(f"'{ChunkState.DONE.value}'")
partial_index(
    "ix_chunks_waiting", chunks.c.model, chunks.c.tokenizer_fingerprint, chunks.c.due_at, chunks.c.id, where=WAITING
)
# For a busy worker that searches for interactive chunks, however many others wait.
partial_index(
    "ix_chunks_waiting_interactive",
    chunks.c.model,
    chunks.c.tokenizer_fingerprint,
    chunks.c.due_at,
    chunks.c.id,
    where=WAITING & chunks.c.interactive,
)
# For the chunks of one flow: see jobs.queue.fair_shares.
partial_index(
    "ix_chunks_waiting_lane",
    chunks.c.model,
    chunks.c.tenant,
    chunks.c.interactive,
    chunks.c.tokenizer_fingerprint,
    chunks.c.due_at,
    chunks.c.id,
    where=WAITING,
)
# For the chunks of one group. A prefix belongs to one tokenizer, so the index needs no tokenizer.
partial_index(
    "ix_chunks_waiting_group", chunks.c.model, chunks.c.prefix_id, chunks.c.due_at, chunks.c.id, where=WAITING
)
partial_index("ix_chunks_batch_id", chunks.c.batch_id, where=CLAIMED)
Index("ix_chunks_job_id_first_item", chunks.c.job_id, chunks.c.first_item)

flows = Table(
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
    Column("continuations", LargeBinary),  # null: the rows are scored with labels of one token
    Column("sources", LargeBinary),  # scoring.sources.Sources: which rows need not be computed; null: all are computed
)

chunk_scores = Table(
    "chunk_scores",
    metadata,
    Column("chunk_id", RowId, ForeignKey("chunks.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("logits", LargeBinary, nullable=False),  # float32, little-endian, [items, labels]
    Column("logprobs", LargeBinary),
    Column("cached_tokens", Integer, nullable=False),
    Column("targets", LargeBinary),  # of single places, where an answer needs them: see jobs.store.codec.pack_places
    # Null: not known. It is no foreign key, because each finish would lock the one row that all of them refer to.
    Column("provenance_id", BigInteger),
)

# Scores that later jobs may use: see jobs.queue.reuse. The oldest have the lowest ids.
kept_scores = Table(
    "kept_scores",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("content", LargeBinary(CONTENT_BYTES), nullable=False),  # a hash of what was computed
    Column("provenance_id", BigInteger, nullable=False),  # of what computed it, without algorithms
    Column("algorithms", String(255), nullable=False),  # by which it was computed, with commas
    Column("scores", LargeBinary, nullable=False),  # a row of scoring.sources.columns_of, little-endian float32
    Column("kept_at", Seconds, nullable=False),
    UniqueConstraint("tenant", "content", "provenance_id"),
)

provenances = Table(
    "provenances",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),  # a hash: see jobs.store.provenance
    Column("content", JSON, nullable=False),
    Column("recorded_at", Seconds, nullable=False),
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
    # Deferred, because the key is stored before its job. So the second of two requests with one key waits at once.
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
    Column("tokens_per_second", Float(53)),  # measured lately; null before any measurement
    Column("planning", JSON(none_as_null=True)),  # {planner, claim_seconds}: see scoring.planning.description
    Column("estimate_ratio", Float(53)),  # measured over estimated seconds; null before enough was measured
    Column("version", Integer),  # of a model of the catalogue: the id of its row; null: the environment describes it
    # Of all that it computes, without algorithms; null: its scores may depend on what else it computes.
    Column("provenance_id", BigInteger),
)

# One row for each version of a model: changing one retires a row and inserts another. See jobs.catalogue.
models = Table(
    "models",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("name", String(255), nullable=False),
    Column("settings", JSON, nullable=False),  # fields of ScoringSettings that differ from the environment's
    Column("aliases", JSON, nullable=False),
    Column("is_default", Boolean, nullable=False),
    Column("card", JSON, nullable=False),  # what the checkpoint's files said of it when it was added
    Column("added_at", Seconds, nullable=False),
    Column("retired_at", Seconds),  # null: requests may name it
)
partial_index("ix_models_served", models.c.name, where=models.c.retired_at.is_(None), unique=True)

score_counts = Table(  # see jobs.score_counts
    "score_counts",
    metadata,
    Column("artefact", String(64), primary_key=True),  # the id of a calibration or threshold
    Column("hour", Integer, primary_key=True, autoincrement=False),  # since 1970
    Column("distribution", String(16), primary_key=True),
    Column("cell", SmallInteger, primary_key=True, autoincrement=False),
    Column("rows", BigInteger, nullable=False),
)

tenants = Table(
    "tenants",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("weight", Float(53), nullable=False, server_default="1"),  # of its share: see jobs.queue.fair_shares
    Column("max_waiting_tokens", BigInteger),
    Column("requests_per_second", Integer),
    Column("requests_per_minute", Integer),
    Column("created_at", Seconds, nullable=False),
    # Of a tenant with a quota: an upper bound of its unfinished work, and when that may be counted again. See
    # jobs.tenancy.quotas.
    Column("waiting_tokens", BigInteger, nullable=False, server_default="0"),
    Column("recount_at", Seconds, nullable=False, server_default="0"),
    Column("suspended_at", Seconds),  # null: its requests are taken
    Column("models", JSON(none_as_null=True)),  # the names of those that it may use; null: all
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(16), primary_key=True),  # the public part of the key
    Column("tenant", String(64), ForeignKey("tenants.name"), nullable=False),
    Column("name", String(128), nullable=False),
    Column("secret_sha256", String(64), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("created_at", Seconds, nullable=False),
    Column("expires_at", Seconds),
    Column("revoked_at", Seconds),
    Column("last_used_at", Seconds),
)

changes = Table(
    "changes",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("at", Seconds, nullable=False),
    Column("by", String(320), nullable=False),  # the user and host of a command, or the key of a request
    Column("action", String(32), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("detail", JSON, nullable=False),
)
