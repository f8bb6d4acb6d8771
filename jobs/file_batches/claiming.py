"""Choosing the batch to work on next. Any API process may take any step of any batch, one process at a time.

A claim only keeps two processes from doing the same work: it ends by itself, and a process that is slower than that
does no harm, because every step compares where the batch is with where it was when the step began.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import and_, bindparam, exists, func, or_, select, update

from jobs.file_batches.reading import BatchRecord, batch_record
from jobs.file_batches.tables import LINE_HAS_ENDED, OPEN, BatchStatus, batch_lines, file_batches
from jobs.store.clock import NOW
from jobs.store.database import Database
from jobs.store.lists import is_one_of
from jobs.store.tables import Seconds, jobs


def claim_batch(
    db: Database, models: Collection[str], seconds: float, *, but_of: Collection[str] = ()
) -> BatchRecord | None:
    """Return a batch with something to do; None if there is none.

    Of the tenants with such batches, the one that was served least recently is next, however many batches each has. Of
    its batches, the one is next on which nobody has worked for the longest time. No other process works on it until it
    is released.

    models: whose lines this process can read. seconds: after this, the claim ends by itself. but_of: tenants whose
    batches are not wanted now.
    """
    given = {"for_models": models, "but_of": but_of}
    with db.read() as tx:
        if tx.scalar(_DUE, given) is None:
            return None
    with db.write() as tx:
        row = tx.execute(_CLAIM, given | {"seconds": seconds}).one_or_none()
        return None if row is None else batch_record(row)


def release_batch(db: Database, batch_id: str, seconds: float) -> None:
    """Let any process work on a batch again, in so many seconds; at once if the batch has been cancelled meanwhile."""
    with db.write(durable=False) as tx:
        tx.execute(_RELEASE, {"of_batch": batch_id, "seconds": seconds})


def read_again(db: Database, batch_id: str) -> BatchRecord | None:
    """Return a batch of any tenant as it is now; None if it is gone."""
    with db.read() as tx:
        row = tx.execute(select(file_batches).where(file_batches.c.id == batch_id)).one_or_none()
        return None if row is None else batch_record(row)


def has_expired(db: Database, batch_id: str) -> bool:
    """Return whether the time of a batch is over."""
    of_batch = select(file_batches.c.id).where(file_batches.c.id == batch_id, file_batches.c.expires_at <= NOW)
    with db.read() as tx:
        return tx.scalar(of_batch) is not None


_UNWRITTEN = and_(batch_lines.c.batch_id == file_batches.c.id, batch_lines.c.number >= file_batches.c.written_lines)
_NEXT_LINE = select(func.min(batch_lines.c.number)).where(_UNWRITTEN).scalar_subquery()
_NEXT_HAS_ENDED = exists(
    select(batch_lines.c.number)
    .outerjoin(jobs, jobs.c.id == batch_lines.c.job_id)
    .where(
        batch_lines.c.batch_id == file_batches.c.id,
        batch_lines.c.number == _NEXT_LINE.correlate(file_batches),
        LINE_HAS_ENDED,
    )
)
_IS_READ = file_batches.c.read_bytes >= file_batches.c.input_bytes
_IS = {status: file_batches.c.status == status.value for status in BatchStatus}
_CAN_READ = or_(
    is_one_of(file_batches.c.model, "for_models"),
    file_batches.c.expires_at <= NOW,
    _IS[BatchStatus.CANCELLING],
)
_HAS_WORK = and_(
    OPEN,
    file_batches.c.next_step_at <= NOW,
    ~is_one_of(file_batches.c.tenant, "but_of"),
    or_(
        and_(_CAN_READ, or_(_IS[BatchStatus.VALIDATING], ~_IS_READ)),
        _IS[BatchStatus.FINALIZING],
        _IS[BatchStatus.CANCELLING],
        _NEXT_HAS_ENDED,
        and_(_IS_READ, ~exists().where(_UNWRITTEN)),
    ),
)
# Batches that have ended count: else a tenant whose batches each take one turn would always be next.
_of_same_tenant = file_batches.alias()
_TENANT_SERVED_AT = (
    select(func.max(_of_same_tenant.c.served_at))
    .where(_of_same_tenant.c.tenant == file_batches.c.tenant)
    .correlate(file_batches)
    .scalar_subquery()
)
_DUE = (
    select(file_batches.c.id)
    .where(_HAS_WORK)
    .order_by(func.coalesce(_TENANT_SERVED_AT, 0.0), file_batches.c.next_step_at)
    .limit(1)
)
_CLAIM = (
    update(file_batches)
    .where(file_batches.c.id == _DUE.with_for_update(skip_locked=True, key_share=True).scalar_subquery())
    .values(next_step_at=NOW + bindparam("seconds", type_=Seconds), served_at=NOW)
    .returning(*file_batches.c)
)
_RELEASE = (
    update(file_batches)
    # A cancellation ends the claim, and what it wants is not to wait.
    .where(file_batches.c.id == bindparam("of_batch"), file_batches.c.next_step_at > NOW)
    .values(next_step_at=NOW + bindparam("seconds", type_=Seconds))
)
