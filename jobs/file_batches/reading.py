"""Reading file batches. Those of other tenants, and those past their retention, count as missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, exists, select

from jobs.file_batches.tables import OPEN, BatchStatus, batch_lines, file_batches
from jobs.files.tables import files
from jobs.queue.read import LISTED_COLUMNS, has_status, job_record
from jobs.store.clock import is_to_come
from jobs.store.database import Database, Transaction
from jobs.store.lists import is_one_of
from jobs.store.records import JobRecord, JobStatus
from jobs.store.tables import jobs
from jobs.store.webhook_events import BatchEvent, Webhook
from jobs.tenancy.ownership import owned
from jobs.webhooks.outbox import unpack_webhook
from scoring.error_codes import ErrorCode, RequestError

VISIBLE_BATCH = is_to_come(file_batches.c.remove_at)
"""SQL condition: the retention of the batch is not over."""

FILE_IN_USE = exists().where(file_batches.c.input_file_id == files.c.id, OPEN)
"""SQL condition: a batch that has not ended reads the file."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A file batch as it is stored. Times are Unix seconds on the database's clock."""

    id: str
    tenant: str
    model: str
    endpoint: str  # to which its lines are requests
    status: BatchStatus
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    completion_window: str
    created_at: float
    in_progress_at: float | None
    cancelling_at: float | None
    finalizing_at: float | None
    ended_at: float | None
    expires_at: float
    metadata: Mapping[str, str]  # the client's own
    webhook: Webhook | None
    error_message: str | None
    total_lines: int
    input_bytes: int
    read_bytes: int
    read_lines: int
    written_lines: int
    completed_lines: int
    failed_lines: int
    prompt_tokens: int
    cached_tokens: int
    is_late: bool

    @property
    def is_read(self) -> bool:
        """Whether all of its lines have become jobs, or were refused."""
        return self.read_bytes >= self.input_bytes


def batch_record(row: Row[Any]) -> BatchRecord:
    """Return a row of the table as a record."""
    values = row._asdict()
    return BatchRecord(
        **{name: values[name] for name in BatchRecord.__slots__}
        | {"status": BatchStatus(row.status), "webhook": unpack_webhook(row.webhook, BatchEvent)},
    )


def find_batch(tx: Transaction, tenant: str, batch_id: str, *, lock: bool = False) -> BatchRecord:
    """Return a tenant's batch. lock: whether to lock its row, for a change. Raises RequestError BATCH_NOT_FOUND."""
    query = select(file_batches).where(file_batches.c.id == batch_id, file_batches.c.tenant == tenant, VISIBLE_BATCH)
    row = tx.execute(query.with_for_update(key_share=True) if lock else query).one_or_none()
    if row is None:
        raise batch_not_found()
    return batch_record(row)


def batch_not_found() -> RequestError:
    """Return the error for a batch that does not exist or that the caller may not see."""
    return RequestError(ErrorCode.BATCH_NOT_FOUND, "there is no such batch")


def get_batch(db: Database, tenant: str, batch_id: str) -> BatchRecord:
    """Return one batch. Raises RequestError BATCH_NOT_FOUND."""
    with db.read() as tx:
        return find_batch(tx, tenant, batch_id)


def list_batches(db: Database, tenant: str, *, limit: int, after: str | None = None) -> list[BatchRecord]:
    """Return a tenant's batches, newest first. after: the last id of the page before."""
    query = select(file_batches).where(file_batches.c.tenant == tenant, VISIBLE_BATCH)
    if after is not None:
        query = query.where(file_batches.c.id < after)
    with db.read() as tx:
        return [batch_record(row) for row in tx.execute(query.order_by(file_batches.c.id.desc()).limit(limit))]


def list_jobs_of_batch(
    db: Database,
    tenant: str,
    *,
    batch_id: str,
    status: JobStatus | None = None,
    limit: int,
    after: str | None = None,
) -> list[JobRecord]:
    """Return the jobs of a batch in the order of its lines. after: the last id of the page before.

    Raises RequestError BATCH_NOT_FOUND.
    """
    of_batch = batch_lines.c.batch_id == batch_id
    query = (
        select(*LISTED_COLUMNS)
        .join(batch_lines, batch_lines.c.job_id == jobs.c.id)
        .where(of_batch, owned(tenant))
        .order_by(batch_lines.c.number)
        .limit(limit)
    )
    if status is not None:
        query = query.where(has_status(status))
    if after is not None:
        place = select(batch_lines.c.number).where(of_batch, batch_lines.c.job_id == after).scalar_subquery()
        query = query.where(batch_lines.c.number > place)
    with db.read() as tx:
        find_batch(tx, tenant, batch_id)
        return [job_record(row) for row in tx.execute(query)]


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch has come."""

    id: str
    tenant: str
    status: BatchStatus
    total_lines: int
    completed_lines: int
    failed_lines: int


def progress_of_batches(db: Database, batch_ids: Collection[str]) -> dict[str, BatchProgress]:
    """Return the progress of batches by id, whichever tenants own them, in one statement. Removed ones are left out."""
    with db.read() as tx:
        rows = tx.execute(_PROGRESS, {"batch_ids": list(batch_ids)})
        return {row.id: BatchProgress(**row._asdict() | {"status": BatchStatus(row.status)}) for row in rows}


def batches_of(db: Database, batch_ids: Collection[str]) -> dict[str, BatchRecord]:
    """Return batches by id, whichever tenants own them, in one statement. Removed ones are left out."""
    with db.read() as tx:
        return {row.id: batch_record(row) for row in tx.execute(_BATCHES, {"batch_ids": list(batch_ids)})}


_OF_BATCHES = (is_one_of(file_batches.c.id, "batch_ids"), VISIBLE_BATCH)
_BATCHES = select(file_batches).where(*_OF_BATCHES)
_PROGRESS = select(*file_batches.c[tuple(BatchProgress.__slots__)]).where(*_OF_BATCHES)
