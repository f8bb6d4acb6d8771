"""What a job's owner can see of its deliveries, and calling for one again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select, update

from jobs.store.database import Database
from jobs.tenancy.ownership import find_job
from jobs.webhooks.endpoints import Endpoint, read_endpoint
from jobs.webhooks.tables import DeliveryState, webhook_attempts, webhook_deliveries
from scoring.error_codes import ErrorCode, RequestError

SHOWN_ATTEMPTS = 50
"""The last attempts of a delivery that are shown."""


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """An attempt that was made. reason: None where it was delivered; seconds: None where nobody knows."""

    number: int
    started_at: float
    seconds: float | None
    reason: str | None
    detail: str
    status: int | None
    response: str


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A delivery as it stands. next_attempt_at: Unix seconds, None where none is to come or one is under way;
    endpoint: how its endpoint fares, None where it does not fail.
    """

    id: str
    job_id: str
    event: str
    url: str
    state: DeliveryState
    created_at: float
    next_attempt_at: float | None
    attempts: tuple[LoggedAttempt, ...]
    endpoint: Endpoint | None


def list_deliveries(db: Database, tenant: str, job_id: str) -> list[DeliveryRecord]:
    """The deliveries of a job: none before it has ended, and none if it asked for none.

    Raises RequestError JOB_NOT_FOUND.
    """
    # Else an attempt that is stored between the reads would be seen beside a delivery that has not had it.
    with db.read(one_moment=True) as connection:
        find_job(connection, db, tenant, job_id)
        rows = connection.execute(select(webhook_deliveries).where(webhook_deliveries.c.job_id == job_id)).all()
        return [_record(connection, row) for row in rows]


def redeliver(db: Database, tenant: str, job_id: str, delivery_id: str) -> DeliveryRecord:
    """Have a delivery sent at once, and again by the whole schedule if that fails, whatever became of it so far; to an
    endpoint that is disabled, once. One that is being sent is left alone.

    Raises RequestError JOB_NOT_FOUND, NOT_FOUND.
    """
    of_delivery = (webhook_deliveries.c.id == delivery_id, webhook_deliveries.c.job_id == job_id)
    with db.write() as connection:
        find_job(connection, db, tenant, job_id)
        found = connection.execute(select(webhook_deliveries).where(*of_delivery).with_for_update()).one_or_none()
        if found is None:
            raise RequestError(ErrorCode.NOT_FOUND, "the job has no such delivery")
        if found.claim_id is None:
            connection.execute(
                update(webhook_deliveries)
                .where(*of_delivery)
                .values(state=DeliveryState.PENDING.value, due_at=db.now, failures=0, called_for=True)
            )
        return _record(connection, connection.execute(select(webhook_deliveries).where(*of_delivery)).one())


def _record(connection: Connection, row: Row[Any]) -> DeliveryRecord:
    attempts = connection.execute(
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
        endpoint=read_endpoint(connection, row.tenant, row.url),
    )
