"""The log of deliveries, which the owner of a job or a batch can read, and sending a delivery again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select, update

from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.tenancy.ownership import find_job
from jobs.webhooks.endpoints import Endpoint, read_endpoint
from jobs.webhooks.tables import DeliveryState, webhook_attempts, webhook_deliveries
from scoring.error_codes import ErrorCode, RequestError

SHOWN_ATTEMPTS = 50  # of a delivery, the latest ones; no more are kept


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """A past attempt."""

    number: int
    started_at: float
    seconds: float | None  # None if the sender was lost
    reason: str | None  # None if it was delivered
    detail: str
    status: int | None
    response: str


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A delivery with its attempts and its endpoint."""

    id: str
    job_id: str  # of the job or the batch
    event: str
    url: str
    state: DeliveryState
    created_at: float
    next_attempt_at: float | None  # Unix seconds; None if there is none to come, or one is being made
    attempts: tuple[LoggedAttempt, ...]
    endpoint: Endpoint | None  # None if it is not failing


Find = Callable[[Transaction, str, str], object]
"""A function that raises RequestError unless something of this id is visible to a tenant."""


def list_deliveries(db: Database, tenant: str, job_id: str, find: Find = find_job) -> list[DeliveryRecord]:
    """Return the deliveries of a job: none before it has ended, or if it asked for none.

    find: finds the job, or what else the id is of. Raises RequestError as it does: JOB_NOT_FOUND.
    """
    # A snapshot, so that deliveries and attempts agree even if an attempt is stored between the reads.
    with db.read(snapshot=True) as tx:
        find(tx, tenant, job_id)
        rows = tx.execute(select(webhook_deliveries).where(webhook_deliveries.c.job_id == job_id)).all()
        return [_record(tx, row) for row in rows]


def redeliver(db: Database, tenant: str, job_id: str, delivery_id: str, find: Find = find_job) -> DeliveryRecord:
    """Have a delivery sent at once, whatever its state, and retried by the whole schedule if that fails.

    A disabled endpoint gets it only once. A delivery that is being sent is left as it is. find: as above.
    Raises RequestError JOB_NOT_FOUND, NOT_FOUND.
    """
    of_delivery = (webhook_deliveries.c.id == delivery_id, webhook_deliveries.c.job_id == job_id)
    with db.write() as tx:
        find(tx, tenant, job_id)
        found = tx.execute(select(webhook_deliveries).where(*of_delivery).with_for_update()).one_or_none()
        if found is None:
            raise RequestError(ErrorCode.NOT_FOUND, "there is no such delivery")
        if found.claim_id is None:
            tx.execute(
                update(webhook_deliveries)
                .where(*of_delivery)
                .values(state=DeliveryState.PENDING.value, due_at=NOW, failures=0, called_for=True)
            )
        return _record(tx, tx.execute(select(webhook_deliveries).where(*of_delivery)).one())


def _record(tx: Transaction, row: Row[Any]) -> DeliveryRecord:
    attempts = tx.execute(
        select(webhook_attempts)
        .where(webhook_attempts.c.delivery_id == row.id)
        .order_by(webhook_attempts.c.number.desc())
        .limit(SHOWN_ATTEMPTS)
    ).all()
    waits = row.state == DeliveryState.PENDING.value and row.claim_id is None
    return DeliveryRecord(
        id=row.id,
        job_id=row.job_id,
        event=row.event,
        url=row.url,
        state=DeliveryState(row.state),
        created_at=row.created_at,
        next_attempt_at=row.due_at if waits else None,
        attempts=tuple(
            LoggedAttempt(a.number, a.started_at, a.seconds, a.reason, a.detail, a.status, a.response)
            for a in reversed(attempts)
        ),
        endpoint=read_endpoint(tx, row.tenant, row.url),
    )
