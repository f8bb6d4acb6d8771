"""Removing jobs and prefixes, a bounded number of rows in each transaction."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, exists, select, update

from jobs.queue.idempotency import remove_keys
from jobs.queue.reuse import forget
from jobs.store.clock import NOW
from jobs.store.database import Database
from jobs.store.free_rows import free_rows
from jobs.store.tables import DELETED, chunks, jobs, prefixes

JOBS_PER_STEP = 500
CHUNKS_PER_STEP = 1_000


class Removal(NamedTuple):
    """The result of one step."""

    found: int  # jobs past their retention that the step worked on
    removed: int  # those of them that are removed now


def remove_jobs(db: Database, *which: ColumnElement[bool]) -> Removal:
    """Remove some chunks of jobs past their retention, and the jobs that have no chunk left.

    Inputs and scores are removed with their chunks, and idempotency keys with their jobs. Prefixes of removed jobs are
    marked, and :func:`remove_prefixes` removes those that no other job uses.
    """
    with db.write(slow=True) as tx:
        columns = jobs.c.id, jobs.c.remove_at
        past = free_rows(tx, columns, jobs.c.remove_at <= NOW, *which, limit=JOBS_PER_STEP, order_by=jobs.c.remove_at)
        job_ids = [row.id for row in past]
        if not job_ids:
            return Removal(0, 0)
        some = tx.execute(select(*chunks.c["id", "job_id"]).where(chunks.c.job_id.in_(job_ids)).limit(CHUNKS_PER_STEP))
        job_of = {row.id: row.job_id for row in some}
        chunk_ids = list(job_of)
        # Jobs whose time is over leave their scores to later jobs; those that somebody has deleted do not.
        deleted = {row.id for row in past if row.remove_at == DELETED}
        forget(tx, [chunk_id for chunk_id, job_id in job_of.items() if job_id in deleted])
        tx.execute(delete(chunks).where(chunks.c.id.in_(chunk_ids)))
        remove_keys(tx, job_ids)
        emptied = tx.scalars(
            delete(jobs)
            .where(jobs.c.id.in_(job_ids), ~exists().where(chunks.c.job_id == jobs.c.id))
            .returning(jobs.c.prefix_id)
        ).all()
        marked = sorted(set(emptied))
        # Locked in one order first, because another step may mark the same prefixes.
        tx.execute(
            select(prefixes.c.id)
            .where(prefixes.c.id.in_(marked))
            .order_by(prefixes.c.id)
            .with_for_update(key_share=True)
        )
        tx.execute(update(prefixes).where(prefixes.c.id.in_(marked)).values(maybe_unused=True))
        return Removal(len(job_ids), len(emptied))


def remove_prefixes(db: Database) -> int:
    """Check some marked prefixes, and remove those that no job uses. Return how many were checked.

    An accept that is about to use a prefix either holds its row (FOR KEY SHARE), which is then skipped, or comes after
    this transaction and stores the prefix again.
    """
    with db.write(slow=True) as tx:
        marked = [row.id for row in free_rows(tx, (prefixes.c.id,), prefixes.c.maybe_unused)]
        if marked:
            used = exists().where(jobs.c.prefix_id == prefixes.c.id)
            tx.execute(delete(prefixes).where(prefixes.c.id.in_(marked), ~used))
            tx.execute(update(prefixes).where(prefixes.c.id.in_(marked)).values(maybe_unused=False))
        return len(marked)
