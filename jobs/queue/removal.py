"""Taking rows away for good, a bounded number in each transaction."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, exists, select, update

from jobs.store.database import Database
from jobs.store.tables import chunks, jobs, prefixes
from jobs.webhooks.tables import PENDING, webhook_deliveries

JOBS_PER_STEP = 500
CHUNKS_PER_STEP = 1_000


class Removal(NamedTuple):
    """One step's outcome. found: jobs it worked on; removed: those of them that are gone now."""

    found: int
    removed: int


def remove_jobs(db: Database, *which: ColumnElement[bool]) -> Removal:
    """One step in removing jobs whose time is up: a bounded number of chunks, then the jobs that have none left.

    Chunks take their inputs and scores with them, jobs their idempotency keys. A prefix that may have lost its last
    job is marked, and :func:`remove_prefixes` looks.
    """
    with db.write() as connection:
        job_ids = list(
            connection.scalars(
                select(jobs.c.id)
                .where(jobs.c.remove_at <= db.now, *which)
                .order_by(jobs.c.remove_at)
                .limit(JOBS_PER_STEP)
                .with_for_update(skip_locked=True)
            )
        )
        if not job_ids:
            return Removal(0, 0)
        chunk_ids = list(
            connection.scalars(select(chunks.c.id).where(chunks.c.job_id.in_(job_ids)).limit(CHUNKS_PER_STEP))
        )
        connection.execute(delete(chunks).where(chunks.c.id.in_(chunk_ids)))
        emptied = connection.scalars(
            delete(jobs)
            .where(jobs.c.id.in_(job_ids), ~exists().where(chunks.c.job_id == jobs.c.id))
            .returning(jobs.c.prefix_id)
        ).all()
        marked = sorted(set(emptied))
        # Locked in order first: another step may have the same prefixes to mark.
        connection.execute(
            select(prefixes.c.id)
            .where(prefixes.c.id.in_(marked))
            .order_by(prefixes.c.id)
            .with_for_update(key_share=True)
        )
        connection.execute(update(prefixes).where(prefixes.c.id.in_(marked)).values(maybe_unused=True))
        return Removal(len(job_ids), len(emptied))


def remove_prefixes(db: Database) -> int:
    """One step in removing prefixes that no job uses. Returns how many were looked at.

    Safe against an accept that is about to use one: that accept holds the row (FOR KEY SHARE), so it is passed over,
    or it comes after this transaction and stores the prefix anew.
    """
    with db.write() as connection:
        marked = list(
            connection.scalars(
                select(prefixes.c.id)
                .where(prefixes.c.maybe_unused)
                .limit(JOBS_PER_STEP)
                .with_for_update(skip_locked=True)
            )
        )
        if marked:
            used = exists().where(jobs.c.prefix_id == prefixes.c.id)
            connection.execute(delete(prefixes).where(prefixes.c.id.in_(marked), ~used))
            connection.execute(update(prefixes).where(prefixes.c.id.in_(marked)).values(maybe_unused=False))
        return len(marked)


def remove_deliveries(db: Database) -> int:
    """One step in removing deliveries, with their attempts, whose time of keeping is over: that of their job. Those
    that are still to be sent stay. Returns how many were removed.
    """
    # In a subquery, which is evaluated once: PostgreSQL looks nothing up in an index by what is volatile.
    now = select(db.now).scalar_subquery()
    with db.write() as connection:
        over = list(
            connection.scalars(
                select(webhook_deliveries.c.id)
                .where(webhook_deliveries.c.remove_at <= now, ~PENDING)
                .limit(JOBS_PER_STEP)
                .with_for_update(skip_locked=True)
            )
        )
        if over:
            connection.execute(delete(webhook_deliveries).where(webhook_deliveries.c.id.in_(over)))
        return len(over)
