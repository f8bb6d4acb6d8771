"""How many bytes a tenant stores: its files, what its batches will still write, and its jobs with their scores.

All of it is the sum of rows, so nothing can drift: what is removed has gone from the sum. A sum reads indexes alone.
The bytes of a job and of a line of a batch are known before they are stored, from their numbers of items and labels.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, select

from jobs.file_batches.tables import OPEN, file_batches
from jobs.files.tables import files
from jobs.store.database import Database
from jobs.store.records import Origin
from jobs.store.tables import COUNTED, jobs


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """What a tenant stores, in bytes."""

    kept: int  # files, jobs, and what batches will write
    calls: int  # what is kept of calls for a short time


def count_stored(db: Database, tenant: str) -> StoredBytes:
    """Add up what a tenant stores now. Raises StorageUnavailable."""
    with db.read(slow=True) as tx:
        row = tx.execute(_STORED, {"of_tenant": tenant}).one()
    return StoredBytes(int(row.files + row.reserved + row.jobs), int(row.calls))


_OF_JOBS = select(func.coalesce(func.sum(jobs.c.stored_bytes), 0)).where(
    jobs.c.tenant == bindparam("of_tenant"), COUNTED
)
_STORED = select(
    select(func.coalesce(func.sum(files.c.bytes), 0))
    .where(files.c.tenant == bindparam("of_tenant"), files.c.remove_at.is_(None))
    .scalar_subquery()
    .label("files"),
    select(func.coalesce(func.sum(file_batches.c.reserved_bytes), 0))
    .where(file_batches.c.tenant == bindparam("of_tenant"), OPEN)
    .scalar_subquery()
    .label("reserved"),
    _OF_JOBS.where(jobs.c.origin.in_([Origin.JOB.value, Origin.LINE.value])).scalar_subquery().label("jobs"),
    _OF_JOBS.where(jobs.c.origin == Origin.CALL.value).scalar_subquery().label("calls"),
)
