"""Sweeping: returning lost batches, ending overdue jobs, removing old rows. Several processes may sweep at once."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Table, exists, select

from jobs.queue.ending import end_jobs
from jobs.queue.lease import return_batch
from jobs.queue.removal import remove_jobs, remove_prefixes
from jobs.queue.reuse import remove_old
from jobs.queue.upload import sweep_uploads
from jobs.queue.worker_registry import seen_within
from jobs.store.clock import NOW
from jobs.store.database import Database
from jobs.store.free_rows import free_rows, remove_free_rows
from jobs.store.records import JobStatus, Swept
from jobs.store.tables import CLAIMED, HAS_ENDED, batches, chunks, idempotency_keys, jobs, workers
from jobs.webhooks.endpoints import FORGETTABLE
from jobs.webhooks.tables import PENDING, webhook_deliveries, webhook_endpoints, webhook_secrets

AGAIN_SECONDS = 0.1
"""The pause before a sweep that follows one which has left work. Others may want the database meanwhile."""

STEPS = 20  # most steps of each kind in one sweep; the next sweep does the rest
LOST_BATCHES = 200  # most batches that one sweep returns, of up to a thousand chunks each
WORKER_FORGET_SECONDS = 600.0  # a worker not seen for so long is removed; if it comes back, it registers again
LOST_WORKER = "the worker that scored it was lost"


def sweep(db: Database) -> Swept:
    """Return the batches of lost workers, expire jobs past their deadline, abort or complete uploads without a
    receiver, and remove rows past their retention.

    Sweeps that run at the same time skip each other's rows. The caller rings for the returned models and announces the
    returned jobs. It sweeps again at once if more jobs may be past their deadline: all lines of a batch have the same.
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
    for remove in (remove_prefixes, remove_old):
        for _ in range(STEPS):
            if not remove(db):
                break
    # Deliveries that are still to be sent stay, and batches that hold work or whose lease has not run out.
    for table, which in (
        (webhook_deliveries, (webhook_deliveries.c.remove_at <= NOW, ~PENDING)),
        (batches, (batches.c.lease_until < NOW, ~_HOLDS_WORK)),
        (idempotency_keys, (idempotency_keys.c.expires_at <= NOW,)),
        (workers, (~seen_within(db, WORKER_FORGET_SECONDS),)),
        (webhook_endpoints, (FORGETTABLE,)),
        (webhook_secrets, (webhook_secrets.c.expires_at <= NOW,)),
    ):
        for _ in range(STEPS):
            if not _remove(db, table, *which):
                break
    return Swept(tuple(ended), frozenset(models), removed, more=bool(expired))


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
        if not free_rows(tx, (batches.c.id,), batches.c.id == batch_id, batches.c.lease_until < NOW):
            return Swept((), frozenset(), 0)
        held = select(chunks.c.model).where(chunks.c.batch_id == batch_id, CLAIMED).distinct()
        models = frozenset(tx.scalars(held))
        returned = return_batch(tx, batch_id, LOST_WORKER)
    return Swept(returned.job_ids, models, 0)


def _expire_jobs(db: Database) -> list[str]:
    """End some jobs past their deadline. An upload that is not accepted yet ends silently: nothing was promised."""
    with db.write(slow=True) as tx:
        late = free_rows(tx, (jobs.c.id, jobs.c.status), ~HAS_ENDED, jobs.c.expires_at <= NOW)
        ended: list[str] = []
        for silently in (False, True):
            which = [row.id for row in late if (row.status == JobStatus.RECEIVING.value) is silently]
            ended += end_jobs(tx, which, JobStatus.EXPIRED, silently=silently) if which else []
        return ended


def _remove(db: Database, table: Table, *which: ColumnElement[bool]) -> int:
    """Remove some rows of a table. Return how many."""
    with db.write(slow=True) as tx:
        return remove_free_rows(tx, tuple(table.primary_key), *which)
