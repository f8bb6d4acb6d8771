"""Holding a batch, and giving it back."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, update

from jobs.queue.ending import end_jobs, locking
from jobs.queue.fair_shares import open_lane
from jobs.store.database import Database
from jobs.store.records import JobError, JobStatus, Returned
from jobs.store.tables import CLAIMED, ChunkState, batches, chunks
from scoring.error_codes import ErrorCode


def renew(db: Database, batch_id: str) -> bool:
    """Hold a batch for another lease. False if it is lost: then nothing that is done for it counts."""
    with db.write(durable=False) as connection:
        renewed = connection.execute(
            update(batches)
            .where(batches.c.id == batch_id)
            .values(lease_until=db.now + db.settings.lease_seconds)
            .returning(batches.c.id)
        )
        return renewed.one_or_none() is not None


def release(db: Database, batch_id: str) -> Returned:
    """Give back what is unfinished of a batch, as if it had never been claimed: nobody is to blame."""
    with db.write() as connection:
        if not lock_batch(connection, batch_id):
            return Returned(0, ())
        return return_batch(connection, db, batch_id, None)


def abandon(db: Database, batch_id: str, message: str) -> Returned:
    """Give back what is unfinished of a batch because scoring it failed: see :func:`return_batch`.

    message: why, in words meant for the owner of a job that fails for good with this.
    """
    with db.write() as connection:
        if not lock_batch(connection, batch_id):
            return Returned(0, ())
        return return_batch(connection, db, batch_id, message)


def lock_batch(connection: Connection, batch_id: str) -> bool:
    """Lock a batch; False if it is gone."""
    return connection.scalar(select(batches.c.id).where(batches.c.id == batch_id).with_for_update()) is not None


def return_batch(connection: Connection, db: Database, batch_id: str, failure: str | None) -> Returned:
    """Take a locked batch apart: its unfinished chunks wait again.

    failure: None if nobody is to blame. Otherwise one of the chunks may be poison, and nobody knows which. Then the
    chunks' next batches hold half as many, until a poison chunk is alone. Only a failure alone is counted against a
    chunk, so its neighbours never pay for it; with ``max_attempts`` of those its job fails.
    """
    held = (chunks.c.batch_id == batch_id, CLAIMED)
    connection.execute(locking(select(chunks.c.job_id).where(*held)))
    unfinished = connection.execute(select(chunks.c.id, chunks.c.job_id, chunks.c.failures).where(*held)).all()
    connection.execute(delete(batches).where(batches.c.id == batch_id))
    failed: list[str] = []
    changes: dict[str, int] = {}
    if failure is not None and len(unfinished) > 1:
        changes = {"batch_limit": len(unfinished) // 2}
    elif failure is not None and unfinished:
        failures = unfinished[0].failures + 1
        changes = {"batch_limit": 1, "failures": failures}
        if failures >= db.settings.max_attempts:
            error = JobError(ErrorCode.INTERNAL_ERROR, f"given up after {failures} attempts: {failure}")
            failed = end_jobs(connection, db, [unfinished[0].job_id], JobStatus.FAILED, error)
    waiting = connection.execute(
        update(chunks)
        .where(*held)
        .values(state=ChunkState.WAITING.value, batch_id=None, **changes)
        .returning(chunks.c.model, chunks.c.tenant, chunks.c.interactive)
    ).all()
    for model, tenant, interactive in sorted({tuple(row) for row in waiting}):
        open_lane(connection, db, model, tenant, interactive=interactive)
    return Returned(len(waiting), tuple(failed))
