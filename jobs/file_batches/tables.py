"""The tables of file batches. The lines of a file are numbered from 0, and blank lines count."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    false,
    literal_column,
    or_,
)

from jobs.store.tables import HAS_ENDED, Seconds, jobs, metadata, partial_index

MAX_CUSTOM_ID = 512  # characters


class BatchStatus(StrEnum):
    """The status of a file batch, in the words of OpenAI's interface. The last four are final."""

    VALIDATING = "validating"  # nobody has looked into its file yet
    IN_PROGRESS = "in_progress"  # its lines become jobs, and the results of these are written
    CANCELLING = "cancelling"  # its jobs are cancelled, and its lines are written
    FINALIZING = "finalizing"  # everything is written, and its files are closed
    COMPLETED = "completed"
    FAILED = "failed"  # its file can't be read as lines
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in ENDED


ENDED = frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})

file_batches = Table(
    "file_batches",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("model", String(255), nullable=False),
    Column("endpoint", String(32), nullable=False),
    Column("status", String(12), nullable=False),
    Column("input_file_id", String(40), nullable=False, index=True),
    # They exist from the first line that is written to them.
    Column("output_file_id", String(40)),
    Column("error_file_id", String(40)),
    Column("completion_window", String(16), nullable=False),
    Column("created_at", Seconds, nullable=False),
    Column("in_progress_at", Seconds),
    Column("cancelling_at", Seconds),
    Column("finalizing_at", Seconds),
    Column("ended_at", Seconds),
    Column("expires_at", Seconds, nullable=False),  # the end of the completion window
    Column("remove_at", Seconds),  # set when it ends: from then on no reader sees it, and its rows are removed
    Column("metadata", JSON, nullable=False),
    Column("webhook", JSON(none_as_null=True)),  # {url, host, events}
    # Why it failed; of one that is in progress: why its further lines wait, see api.answers.batches.pack_reason.
    Column("error_message", Text),
    Column("total_lines", Integer, nullable=False),  # those that are not blank
    Column("input_bytes", BigInteger, nullable=False),
    # Where the next line begins that is to become a job, and its number.
    Column("read_bytes", BigInteger, nullable=False),
    Column("read_lines", Integer, nullable=False),
    Column("written_lines", Integer, nullable=False),  # the number behind that of the last line that was written
    Column("completed_lines", Integer, nullable=False),  # lines in the output file
    Column("failed_lines", Integer, nullable=False),  # lines in the error file
    Column("prompt_tokens", BigInteger, nullable=False),  # of the lines in the output file
    Column("cached_tokens", BigInteger, nullable=False),
    # What its files will grow by for lines that were read and are not written, at most: the sum of their answer_bytes.
    Column("reserved_bytes", BigInteger, nullable=False, server_default="0"),
    Column("is_late", Boolean, nullable=False, server_default=false()),  # whether a line was not scored in time
    # Until then no process works on it: one does at present, or there is nothing to do.
    Column("next_step_at", Seconds, nullable=False),
    Column("served_at", Seconds),  # when a process last began to work on it
)
Index("ix_file_batches_tenant_id", file_batches.c.tenant, file_batches.c.id)
Index("ix_file_batches_tenant_served_at", file_batches.c.tenant, file_batches.c.served_at)
# Literals, not parameters: see jobs.store.tables.WAITING.
OPEN = or_(
    *(file_batches.c.status == literal_column(f"'{status.value}'") for status in BatchStatus if not status.ended)
)
"""SQL condition: the batch has not ended."""
NEXT_STEP_INDEX = "ix_file_batches_next_step_at"
partial_index(NEXT_STEP_INDEX, file_batches.c.next_step_at, where=OPEN)
partial_index("ix_file_batches_remove_at", file_batches.c.remove_at, where=file_batches.c.remove_at.is_not(None))

batch_lines = Table(
    "batch_lines",
    metadata,
    Column("batch_id", String(40), ForeignKey("file_batches.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    # Null if the line has none, or one that another line has.
    Column("custom_id", String(MAX_CUSTOM_ID)),
    # No foreign key: a job that was deleted is missing, and its line says so.
    Column("job_id", String(40)),
    Column("refusal", LargeBinary),  # of a line without a job: what is written to the error file
    Column("ranking", JSON(none_as_null=True)),  # of a line that ranks: what its answer needs beside the scores
    Column("answer_bytes", BigInteger, nullable=False, server_default="0"),  # that are written of it, at most
)
partial_index(
    "uq_batch_lines_custom_id",
    batch_lines.c.batch_id,
    batch_lines.c.custom_id,
    unique=True,
    where=batch_lines.c.custom_id.is_not(None),
)
partial_index("ix_batch_lines_job_id", batch_lines.c.job_id, where=batch_lines.c.job_id.is_not(None))
LINE_HAS_ENDED = or_(jobs.c.id.is_(None), HAS_ENDED)
"""SQL condition beside an outer join of ``jobs``: the job of the line has ended, or the line has none."""
