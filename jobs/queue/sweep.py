"""Putting right what nobody else will: run by any number of processes, at any time, in short transactions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, delete, exists, select, tuple_

from jobs.queue.ending import end_jobs
from jobs.queue.lease import return_batch
from jobs.queue.removal import remove_deliveries, remove_jobs, remove_prefixes
from jobs.queue.upload import sweep_uploads
from jobs.store.database import Database
from jobs.store.records import JobStatus, Swept
from jobs.store.tables import CLAIMED, batches, chunks, idempotency_keys, jobs, workers
from jobs.webhooks.endpoints import forget_endpoints
from jobs.webhooks.tables import webhook_endpoints, webhook_secrets

ROWS_PER_STEP = 500
STEPS = 20
"""Steps a sweep takes in each of its duties: the rest is for the next one."""
LOST_BATCHES = 200
"""Batches of lost workers, up to a thousand chunks each, that one sweep returns."""
WORKER_FORGET_SECONDS = 600.0
"""A worker not seen for this long is forgotten. One that comes back registers again."""
LOST_WORKER = "the worker that scored it was lost"


def sweep(db: Database) -> Swept:
    """Return the batches of lost workers, expire jobs past their deadline, settle uploads whose receiver is gone,
    remove what is past its time of keeping.

    Sweeps may run at once: each takes the rows that no other has. The caller rings for the models and announces the
    jobs that are returned.
    """
    ended: list[str] = []
    models: set[str] = set()
    removed = 0
    _forget_spent_batches(db)
    for _ in range(LOST_BATCHES):
        lost = _return_lost_batch(db)
        if lost is None:
            break
        ended += lost.job_ids
        models |= lost.models
    for _ in range(STEPS):
        expired = _expire_jobs(db)
        ended += expired
        if not expired:
            break
    uploads = sweep_uploads(db)
    ended += uploads.job_ids
    models |= uploads.models
    for _ in range(STEPS):
        step = remove_jobs(db)
        removed += step.removed
        if not step.found:
            break
    for _ in range(STEPS):
        if not remove_prefixes(db):
            break
    for _ in range(STEPS):
        if not remove_deliveries(db):
            break
    _forget_what_is_over(db)
    return Swept(tuple(ended), frozenset(models), removed)


def _return_lost_batch(db: Database) -> Swept | None:
    """Return one batch whose lease has run out; None if there is none."""
    with db.write() as connection:
        lost = _free_rows(connection, (batches.c.id,), batches.c.lease_until < db.now, limit=1)
        if not lost:
            return None
        batch_id = lost[0][0]
        held = select(chunks.c.model).where(chunks.c.batch_id == batch_id, CLAIMED).distinct()
        models = frozenset(connection.scalars(held))
        returned = return_batch(connection, db, batch_id, LOST_WORKER)
    return Swept(returned.job_ids, models, 0)


def _forget_spent_batches(db: Database) -> None:
    """Remove batches of which everything was finished, once their lease is over."""
    with db.write() as connection:
        spent = ~exists().where(chunks.c.batch_id == batches.c.id, CLAIMED)
        _remove(connection, (batches.c.id,), batches.c.lease_until < db.now, spent)


def _expire_jobs(db: Database) -> list[str]:
    with db.write() as connection:
        late = _free_rows(connection, (jobs.c.id,), jobs.c.finished_at.is_(None), jobs.c.expires_at <= db.now)
        return end_jobs(connection, db, [row.id for row in late], JobStatus.EXPIRED) if late else []


def _forget_what_is_over(db: Database) -> None:
    """Idempotency keys, workers, the failures of endpoints, secrets that sign no more."""
    with db.write() as connection:
        _remove(
            connection, (idempotency_keys.c.tenant, idempotency_keys.c.key), idempotency_keys.c.expires_at <= db.now
        )
    with db.write() as connection:
        _remove(connection, (workers.c.id,), workers.c.last_seen < db.now - WORKER_FORGET_SECONDS)
    with db.write() as connection:
        _remove(connection, tuple(webhook_endpoints.primary_key), forget_endpoints(db))
        _remove(connection, (webhook_secrets.c.id,), webhook_secrets.c.expires_at <= db.now)


def _free_rows(
    connection: Connection, key: tuple[Column[Any], ...], *which: ColumnElement[bool], limit: int = ROWS_PER_STEP
) -> list[Any]:
    """The keys of rows that no other transaction has locked, now locked by this one. Never waits."""
    return list(connection.execute(select(*key).where(*which).limit(limit).with_for_update(skip_locked=True)))


def _remove(connection: Connection, key: tuple[Column[Any], ...], *which: ColumnElement[bool]) -> None:
    rows = _free_rows(connection, key, *which)
    if rows:
        connection.execute(delete(key[0].table).where(tuple_(*key).in_([tuple(row) for row in rows])))
