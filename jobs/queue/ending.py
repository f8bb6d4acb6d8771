"""Ending jobs, for whatever reason. The owner of a job can end it by cancelling or deleting it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, func, or_, select, update

from jobs.queue.idempotency import with_its_key
from jobs.queue.read import job_record
from jobs.queue.removal import remove_jobs
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.lists import is_one_of
from jobs.store.records import JobError, JobRecord, JobStatus, Origin
from jobs.store.tables import (
    CLAIMED,
    DELETED,
    HAS_ENDED,
    STAGED,
    WAITING,
    ChunkState,
    Seconds,
    chunks,
    idempotency_keys,
    jobs,
)
from jobs.tenancy.ownership import find_job
from jobs.webhooks.outbox import store_deliveries
from jobs.webhooks.tables import webhook_deliveries
from settings.store import StoreSettings

SHORTENED_PER_STEP = 5_000
ROUNDING_SECONDS = 1.0
"""Times of one transaction may differ a little. A job that is kept longer by no more than this is left alone."""


def lock_jobs(job_ids: Collection[str] | Select[Any]) -> Select[Any]:
    """Return a statement that locks jobs in the order of their ids.

    Every transaction that changes a job or its chunks holds this lock, except a claim.
    """
    return select(jobs.c.id).where(jobs.c.id.in_(job_ids)).order_by(jobs.c.id).with_for_update(key_share=True)


def end_jobs(
    tx: Transaction, job_ids: Iterable[str], status: JobStatus, error: JobError | None = None, *, silently: bool = False
) -> dict[str, float]:
    """End locked jobs, drop their unfinished chunks and store the deliveries to their webhooks.

    Only the update that finishes the last chunk of a job ends jobs, too: see :func:`ending_columns`. silently: store no
    deliveries, and forget the webhooks. Returns the ids of the jobs that this call ended, and when they ended; a job
    that had ended before stays as it is.
    """
    values = {
        "job_ids": list(job_ids),
        "to_status": status.value,
        "to_code": error.code.value if error else None,
        "to_message": error.message if error else None,
        **retention(tx.settings),
    }
    rows = tx.execute(_END, values).all()
    ended = {row.id: row.finished_at for row in rows}
    if not silently:
        store_deliveries(tx, rows, status)
    elif ended:
        tx.execute(update(jobs).where(jobs.c.id.in_(ended)).values(webhook=None))
    if ended and status is not JobStatus.SUCCEEDED:
        tx.execute(
            update(chunks)
            .where(chunks.c.job_id.in_(ended), or_(STAGED, WAITING, CLAIMED))
            .values(state=ChunkState.DROPPED.value, batch_id=None)
        )
    return ended


_KEEP_JOB: ColumnElement[float] = bindparam("keep_job_seconds", type_=Seconds)


def _kept_until(end: ColumnElement[float]) -> ColumnElement[float]:
    """Return until when a job is kept that ends at a time. The parameters are those of :func:`retention`."""
    kept = end + case(
        (jobs.c.origin == Origin.CALL.value, bindparam("keep_call_seconds", type_=Seconds)),
        # A line of a batch is read when all lines before it have ended, at the end of the batch's time at the latest.
        (jobs.c.origin == Origin.LINE.value, func.coalesce(jobs.c.expires_at - end, 0.0) + _KEEP_JOB),
        else_=_KEEP_JOB,
    )
    return with_its_key(kept, idempotency_keys.c.job_id, jobs.c.id)


_ENDED: dict[str, Any] = {"finished_at": NOW, "remove_at": _kept_until(NOW), "received_at": None}
FOR_DELIVERIES = jobs.c["id", "tenant", "webhook", "finished_at", "remove_at", "traceparent"]
"""The columns that a delivery takes from its job."""

_END = (
    update(jobs)
    .where(is_one_of(jobs.c.id, "job_ids"), ~HAS_ENDED)
    .values(
        status=bindparam("to_status"),
        error_code=bindparam("to_code"),
        error_message=bindparam("to_message"),
        **_ENDED,
    )
    .returning(*FOR_DELIVERIES)
)


def ending_columns(condition: ColumnElement[bool]) -> dict[str, Any]:
    """Return what an update of jobs that have not ended sets, so that those that meet a condition have ended.

    The update also sets the status. Its parameters are those of :func:`retention`. The transaction stores the
    deliveries.
    """
    return {name: case((condition, value), else_=jobs.c[name]) for name, value in _ENDED.items()}


def retention(settings: StoreSettings) -> dict[str, float]:
    """Return the parameters that say how long a job is kept after its end."""
    return {"keep_job_seconds": settings.retention_seconds, "keep_call_seconds": settings.call_retention_seconds}


def shorten_retention(db: Database) -> int:
    """Keep jobs that have ended no longer than if they ended now, after the retention was made shorter.

    Returns how many are removed sooner. A longer retention changes nothing for them.
    """
    count = 0
    while True:
        with db.write(slow=True) as tx:
            until = _kept_until(jobs.c.finished_at)
            longer = select(jobs.c.id).where(jobs.c.remove_at > NOW, until < jobs.c.remove_at - ROUNDING_SECONDS)
            ids = list(
                tx.scalars(
                    longer.limit(SHORTENED_PER_STEP).with_for_update(of=jobs, key_share=True, skip_locked=True),
                    retention(tx.settings),
                )
            )
            if not ids:
                return count
            shortened = update(jobs).where(jobs.c.id.in_(ids)).values(remove_at=until)
            tx.execute(shortened, retention(tx.settings))
            until_then = select(jobs.c.remove_at).where(jobs.c.id == webhook_deliveries.c.job_id).scalar_subquery()
            of_jobs = update(webhook_deliveries).where(webhook_deliveries.c.job_id.in_(ids))
            tx.execute(of_jobs.values(remove_at=until_then))
            count += len(ids)


def cancel(db: Database, tenant: str, job_id: str) -> JobRecord:
    """Cancel a job, unless it has ended. Scores that were stored can still be read.

    Raises RequestError JOB_NOT_FOUND.
    """
    with db.write(slow=True) as tx:
        find_job(tx, tenant, job_id, lock=True)
        end_jobs(tx, [job_id], JobStatus.CANCELLED)
        return job_record(tx.execute(select(jobs).where(jobs.c.id == job_id)).one())


def delete(db: Database, tenant: str, job_id: str) -> None:
    """Delete a job with its inputs and scores; cancel it first if it has not ended.

    After the first transaction no reader sees the job. Its rows are removed afterwards; if this process dies before
    that, the sweep removes them. A pending delivery to its webhook is still sent. Raises RequestError JOB_NOT_FOUND.
    """
    with db.write(slow=True) as tx:
        find_job(tx, tenant, job_id, lock=True)
        remove_at_once(tx, [job_id])
    while remove_jobs(db, jobs.c.id == job_id).found:
        pass


def remove_at_once(tx: Transaction, job_ids: Collection[str], *, silently: bool = False, deleted: bool = True) -> None:
    """Cancel jobs that have not ended, and let no reader see any of them. Their rows are to be removed afterwards.

    silently: store no deliveries of jobs that this cancels. deleted: their owner wants it so. Otherwise their time is
    over, and the scores that are kept of their items stay, except for those of jobs that were deleted before.
    """
    at = DELETED if deleted else NOW
    tx.execute(lock_jobs(job_ids))
    end_jobs(tx, job_ids, JobStatus.CANCELLED, silently=silently)
    tx.execute(update(jobs).where(jobs.c.id.in_(job_ids), jobs.c.remove_at != DELETED).values(remove_at=at))
    tx.execute(update(webhook_deliveries).where(webhook_deliveries.c.job_id.in_(job_ids)).values(remove_at=at))
