"""The ends of a job: the one function that brings them about, and the two its owner may call for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, case, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from jobs.queue.read import job_record
from jobs.queue.removal import remove_jobs
from jobs.store.database import Database
from jobs.store.records import JobError, JobRecord, JobStatus, Origin
from jobs.store.tables import ChunkState, chunks, jobs
from jobs.tenancy.ownership import find_job
from jobs.webhooks.outbox import store_deliveries
from jobs.webhooks.tables import webhook_deliveries


def locking(job_ids: Collection[str] | Select[Any]) -> Select[Any]:
    """A statement that locks jobs, in the order of their ids.

    Who changes a job or its chunks holds this lock; only a claim does not.
    """
    return select(jobs.c.id).where(jobs.c.id.in_(job_ids)).order_by(jobs.c.id).with_for_update(key_share=True)


def end_jobs(
    connection: Connection,
    db: Database,
    job_ids: Iterable[str],
    status: JobStatus,
    error: JobError | None = None,
    *,
    silently: bool = False,
) -> list[str]:
    """Bring locked jobs to an end, drop their unfinished chunks, and store what their webhooks are to be told. Every
    end of every job comes about here. silently: tell no webhook.

    Returns the ids of those that had not ended before; an end never changes.
    """
    values = {
        "job_ids": list(job_ids),
        "to_status": status.value,
        "to_code": error.code.value if error else None,
        "to_message": error.message if error else None,
    }
    rows = connection.execute(db.built(_end), values).all()
    ended = [row.id for row in rows]
    if not silently:
        store_deliveries(connection, rows, status)
    if ended and status is not JobStatus.SUCCEEDED:
        unfinished = chunks.c.state.in_([ChunkState.STAGED.value, ChunkState.WAITING.value, ChunkState.CLAIMED.value])
        connection.execute(
            update(chunks)
            .where(chunks.c.job_id.in_(ended), unfinished)
            .values(state=ChunkState.DROPPED.value, batch_id=None)
        )
    return ended


def _end(db: Database) -> ReturningUpdate[Any]:
    keep: ColumnElement[float] = case(
        (jobs.c.origin == Origin.CALL.value, db.settings.call_retention_seconds), else_=db.settings.retention_seconds
    )
    return (
        update(jobs)
        .where(jobs.c.id.in_(bindparam("job_ids", expanding=True)), jobs.c.finished_at.is_(None))
        .values(
            status=bindparam("to_status"),
            finished_at=db.now,
            remove_at=db.now + keep,
            received_at=None,
            error_code=bindparam("to_code"),
            error_message=bindparam("to_message"),
        )
        # All that a delivery takes from its job.
        .returning(*jobs.c["id", "tenant", "webhook", "finished_at", "remove_at"])
    )


def cancel(db: Database, tenant: str, job_id: str) -> JobRecord:
    """Cancel a job; one that has ended stays as it is. What was scored can still be read.

    Raises RequestError JOB_NOT_FOUND.
    """
    with db.write() as connection:
        find_job(connection, db, tenant, job_id, lock=True)
        end_jobs(connection, db, [job_id], JobStatus.CANCELLED)
        return job_record(connection.execute(select(jobs).where(jobs.c.id == job_id)).one())


def delete(db: Database, tenant: str, job_id: str) -> None:
    """Delete a job with its inputs and scores; one that has not ended is cancelled first.

    Gone for every reader with the first transaction; its rows follow, and the sweep sees to it should this process die
    before. What its webhook is still to be told is sent all the same. Raises RequestError JOB_NOT_FOUND.
    """
    with db.write() as connection:
        find_job(connection, db, tenant, job_id, lock=True)
        end_jobs(connection, db, [job_id], JobStatus.CANCELLED)
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(remove_at=0.0))
        of_job = webhook_deliveries.c.job_id == job_id
        connection.execute(update(webhook_deliveries).where(of_job).values(remove_at=0.0))
    while remove_jobs(db, jobs.c.id == job_id).found:
        pass
