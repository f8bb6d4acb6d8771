"""Sweeping: returning lost batches, ending overdue jobs, removing old rows. Several processes may sweep at once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, delete, exists, select, tuple_

from jobs.queue.ending import end_jobs
from jobs.queue.lease import return_batch
from jobs.queue.removal import remove_deliveries, remove_jobs, remove_prefixes
from jobs.queue.upload import sweep_uploads
from jobs.queue.worker_registry import seen_within
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.records import JobStatus, Swept
from jobs.store.tables import CLAIMED, batches, chunks, idempotency_keys, jobs, workers
from jobs.webhooks.endpoints import FORGETTABLE
from jobs.webhooks.tables import webhook_endpoints, webhook_secrets

ROWS_PER_STEP = 500
STEPS = 20  # most steps of each kind in one sweep; the next sweep does the rest
LOST_BATCHES = 200  # most batches that one sweep returns, of up to a thousand chunks each
WORKER_FORGET_SECONDS = 600.0  # a worker not seen for so long is removed; if it comes back, it registers again
LOST_WORKER = "the worker that scored it was lost"


def sweep(db: Database) -> Swept:
    """Return the batches of lost workers, expire jobs past their deadline, abort or complete uploads without a
    receiver, and remove rows past their retention.

    Sweeps that run at the same time skip each other's rows. The caller rings for the returned models and announces the
    returned jobs.
    """
    ended: list[str] = []
    models: set[str] = set()
    removed = 0
    for batch_id in _lost_batches(db):
        lost = _return_lost_batch(db, batch_id)
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
    for _ in range(STEPS):
        if not _remove_spent_batches(db):
            break
    _remove_expired(db)
    return Swept(tuple(ended), frozenset(models), removed)


# A batch keeps its row until its lease has run out, also when all of its chunks are finished. So most of the batches
# whose lease has run out hold no work, and there may be thousands of them. They must not delay those that hold work.
_HOLDS_WORK = exists().where(chunks.c.batch_id == batches.c.id, CLAIMED)


def _lost_batches(db: Database) -> list[str]:
    """Return batches whose lease has run out while they hold unfinished chunks, those lost for longest first."""
    lost = select(batches.c.id).where(batches.c.lease_until < NOW, _HOLDS_WORK)
    with db.read(slow=True) as tx:
        return list(tx.scalars(lost.order_by(batches.c.lease_until).limit(LOST_BATCHES)))


def _return_lost_batch(db: Database, batch_id: str) -> Swept:
    """Return the chunks of a lost batch to the queue, unless another sweep does so or its lease was renewed."""
    with db.write(slow=True) as tx:
        if not _free_rows(tx, (batches.c.id,), batches.c.id == batch_id, batches.c.lease_until < NOW):
            return Swept((), frozenset(), 0)
        held = select(chunks.c.model).where(chunks.c.batch_id == batch_id, CLAIMED).distinct()
        models = frozenset(tx.scalars(held))
        returned = return_batch(tx, batch_id, LOST_WORKER)
    return Swept(returned.job_ids, models, 0)


def _remove_spent_batches(db: Database) -> int:
    """Remove some batches without unfinished chunks whose lease has run out. Return how many."""
    with db.write(slow=True) as tx:
        return _remove(tx, (batches.c.id,), batches.c.lease_until < NOW, ~_HOLDS_WORK)


def _expire_jobs(db: Database) -> list[str]:
    """End some jobs past their deadline. An upload that is not accepted yet ends silently: nothing was promised."""
    with db.write(slow=True) as tx:
        late = _free_rows(tx, (jobs.c.id, jobs.c.status), jobs.c.finished_at.is_(None), jobs.c.expires_at <= NOW)
        ended: list[str] = []
        for silently in (False, True):
            which = [row.id for row in late if (row.status == JobStatus.RECEIVING.value) is silently]
            ended += end_jobs(tx, which, JobStatus.EXPIRED, silently=silently) if which else []
        return ended


def _remove_expired(db: Database) -> None:
    """Remove expired idempotency keys, lost workers, old failures of endpoints, and secrets that no longer sign."""
    with db.write(slow=True) as tx:
        _remove(tx, (idempotency_keys.c.tenant, idempotency_keys.c.key), idempotency_keys.c.expires_at <= NOW)
    with db.write(slow=True) as tx:
        _remove(tx, (workers.c.id,), ~seen_within(db, WORKER_FORGET_SECONDS))
    with db.write(slow=True) as tx:
        _remove(tx, tuple(webhook_endpoints.primary_key), FORGETTABLE)
        _remove(tx, (webhook_secrets.c.id,), webhook_secrets.c.expires_at <= NOW)


def _free_rows(tx: Transaction, key: tuple[Column[Any], ...], *which: ColumnElement[bool]) -> list[Any]:
    """Lock some rows that no other transaction has locked, and return their keys. Never waits."""
    return list(tx.execute(select(*key).where(*which).limit(ROWS_PER_STEP).with_for_update(skip_locked=True)))


def _remove(tx: Transaction, key: tuple[Column[Any], ...], *which: ColumnElement[bool]) -> int:
    rows = _free_rows(tx, key, *which)
    if rows:
        tx.execute(delete(key[0].table).where(tuple_(*key).in_([tuple(row) for row in rows])))
    return len(rows)
