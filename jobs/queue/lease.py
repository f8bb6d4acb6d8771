"""Leases of batches: granting and renewing them, and returning unfinished chunks to the queue.

A lease lasts for the setting ``lease_seconds`` (``settings/store.py``), from each grant or renewal on.
"""

from __future__ import annotations

from sqlalchemy import CTE, ColumnElement, Insert, bindparam, delete, exists, insert, select, update

from jobs.queue.ending import end_jobs, lock_jobs
from jobs.queue.fair_shares import Flow, open_flows
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.records import JobError, JobStatus, Returned
from jobs.store.tables import CLAIMED, ChunkState, Seconds, batches, chunks
from scoring.error_codes import ErrorCode

_LEASE_END = NOW + bindparam("lease_seconds", type_=Seconds)


def granting(taken: CTE, *conditions: ColumnElement[bool]) -> Insert:
    """Return a statement that stores a new batch, with a lease from now on, if it has taken any chunks.

    conditions: further ones. Its parameters are ``in_batch``, ``to_worker`` and ``lease_seconds``.
    """
    columns = {
        batches.c.id: bindparam("in_batch"),
        batches.c.worker_id: bindparam("to_worker"),
        batches.c.lease_until: _LEASE_END,
    }
    return insert(batches).from_select(
        list(columns), select(*columns.values()).where(exists().select_from(taken), *conditions)
    )


def renew(db: Database, batch_id: str) -> bool:
    """Renew the lease of a batch. Return False if the batch is lost: then scores for it are not stored any more."""
    with db.write(durable=False) as tx:
        return tx.scalar(_RENEW, {"of_batch": batch_id, "lease_seconds": tx.settings.lease_seconds}) is not None


_RENEW = (
    update(batches).where(batches.c.id == bindparam("of_batch")).values(lease_until=_LEASE_END).returning(batches.c.id)
)


def release(db: Database, batch_id: str) -> Returned:
    """Return the unfinished chunks of a batch to the queue, as if they had never been claimed."""
    return _return_if_there(db, batch_id, None)


def abandon(db: Database, batch_id: str, message: str) -> Returned:
    """Return the unfinished chunks of a batch because scoring it failed: see :func:`return_batch`.

    message: the reason, for the owner of a job that fails because of it.
    """
    return _return_if_there(db, batch_id, message)


def _return_if_there(db: Database, batch_id: str, failure: str | None) -> Returned:
    with db.write() as tx:
        if tx.scalar(select(batches.c.id).where(batches.c.id == batch_id).with_for_update()) is None:
            return Returned(0, ())
        return return_batch(tx, batch_id, failure)


def return_batch(tx: Transaction, batch_id: str, failure: str | None) -> Returned:
    """Remove a locked batch; its unfinished chunks wait again.

    failure: why the batch failed; None if its chunks did not cause its end. After a failure one of the chunks may be
    the cause, and it is not known which one. So the next batch that holds any of them is at most half as large, until
    the chunk at fault is alone in its batch. Only failures of a chunk that is alone are counted, so that its neighbours
    do not suffer. After ``max_attempts`` of them its job fails.
    """
    held = (chunks.c.batch_id == batch_id, CLAIMED)
    tx.execute(lock_jobs(select(chunks.c.job_id).where(*held)))
    unfinished = tx.execute(select(chunks.c.id, chunks.c.job_id, chunks.c.failures).where(*held)).all()
    tx.execute(delete(batches).where(batches.c.id == batch_id))
    failed: list[str] = []
    changes: dict[str, int] = {}
    if failure is not None and len(unfinished) > 1:
        changes = {"batch_limit": len(unfinished) // 2}
    elif failure is not None and unfinished:
        failures = unfinished[0].failures + 1
        changes = {"batch_limit": 1, "failures": failures}
        if failures >= tx.settings.max_attempts:
            error = JobError(ErrorCode.INTERNAL_ERROR, f"given up after {failures} attempts: {failure}")
            failed += end_jobs(tx, [unfinished[0].job_id], JobStatus.FAILED, error)
    waiting = tx.execute(
        update(chunks)
        .where(*held)
        .values(state=ChunkState.WAITING.value, batch_id=None, **changes)
        .returning(chunks.c.model, chunks.c.tenant, chunks.c.interactive)
    ).all()
    open_flows(tx, {Flow(*row) for row in waiting})
    return Returned(len(waiting), tuple(failed))
