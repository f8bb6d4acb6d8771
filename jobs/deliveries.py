"""Handing deliveries to those who send them, and writing down what came of it.

Like work: a claim has a lease on the database's clock and an unguessable fence, the request is sent outside of any
transaction, and its outcome is committed under the fence. Who dies in between has it sent again, under the same id.

Deliveries lock their own rows, then their endpoint's, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from jobs.database import Database
from jobs.endpoints import note_failure, note_success, read_endpoint
from jobs.identifiers import new_batch_id
from jobs.webhook_tables import CLAIMED_DELIVERY, PENDING, DeliveryState, webhook_attempts, webhook_deliveries

JITTER = 0.2
"""By such a share of it a pause may be longer, so that what failed together does not come back together."""
MAX_RETRY_AFTER_SECONDS = 86_400.0
"""A receiver may put the next attempt off by so much."""

GONE = 410
SKIPS = 100
"""A claim that finds nothing but deliveries to be skipped looks again, so many times at most."""
LOST = "lost"
"""Why an attempt came to nothing whose sender was never heard of again. It may have been received."""


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery to be sent now. claim_id: the fence; attempt: its number, from 1 on."""

    id: str
    job_id: str
    tenant: str
    url: str
    host: str
    body: bytes
    claim_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of an attempt. reason: a short code, None where it was delivered; status, response: of the answer, if
    there was one, and its beginning; seconds: that it took; retry_after: seconds, where the receiver asks for that.
    """

    reason: str | None
    seconds: float
    detail: str = ""
    status: int | None = None
    response: str = ""
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long failing is put up with. retry_seconds: from an attempt that failed to the next one; after the last of
    them there is none. disable_seconds: for which an endpoint may fail without a success between.
    """

    retry_seconds: Sequence[float]
    disable_seconds: float


@dataclass(frozen=True, slots=True)
class Settled:
    """What an attempt's outcome meant. state: of the delivery from now on; endpoint_disabled: with this attempt."""

    state: DeliveryState
    endpoint_disabled: bool = False


def has_due(db: Database) -> bool:
    """Whether a delivery is due: a cheap look before a claim, which on SQLite waits for whoever writes."""
    with db.read() as connection:
        return bool(_due_hosts(connection, db))


def claim_deliveries(db: Database, count: int, *, per_host: int, lease_seconds: float) -> list[ClaimedDelivery]:
    """Claim deliveries that are due, ``count`` at most, the hosts with the fewest under way first.

    per_host: so many of a host may be under way, whoever sends them; two who claim at once may exceed it, by one claim.
    lease_seconds: after which a claim is void. Those to a disabled endpoint are skipped, unless their owner called for
    them.
    """
    for _ in range(SKIPS):
        # A crash of the database may undo the claim; then its fence is unknown, and the delivery is claimed again.
        with db.write(durable=False) as connection:
            chosen = _choose(connection, db, count, per_host)
            sent = [row for row in chosen if not _skip(connection, row)]
            if sent:
                return _take(connection, db, sent, lease_seconds)
        if not chosen:
            break
    return []


def settle_delivery(db: Database, claimed: ClaimedDelivery, attempt: Attempt, patience: Patience) -> Settled | None:
    """Write down what came of an attempt, and when there is another. None if the claim was void: nothing is changed.

    Raises StorageUnavailable.
    """
    with db.write() as connection:
        row = connection.execute(
            select(webhook_deliveries)
            .where(webhook_deliveries.c.id == claimed.id, webhook_deliveries.c.claim_id == claimed.claim_id, PENDING)
            .with_for_update()
        ).one_or_none()
        if row is None:
            return None
        now = connection.execute(select(db.now)).scalar_one()
        _log(connection, claimed, attempt, now)
        changes: dict[str, Any] = {"claim_id": None}
        if attempt.reason is None:
            note_success(connection, row.tenant, row.url)
            settled = Settled(DeliveryState.DELIVERED)
        else:
            gone = attempt.status == GONE
            disabled, newly = note_failure(
                connection, db, row.tenant, row.url, now, gone=gone, disable_seconds=patience.disable_seconds
            )
            over = disabled or row.failures >= len(patience.retry_seconds)
            settled = Settled(DeliveryState.FAILED if over else DeliveryState.PENDING, newly)
            changes["failures"] = row.failures + 1
            if not over:
                changes["due_at"] = now + pause_seconds(patience.retry_seconds[row.failures], attempt.retry_after)
        connection.execute(
            update(webhook_deliveries)
            .where(webhook_deliveries.c.id == claimed.id)
            .values(state=settled.state.value, **changes)
        )
        return settled


def _choose(connection: Connection, db: Database, count: int, per_host: int) -> list[Row[Any]]:
    busy = _under_way(connection, db)
    chosen: list[Row[Any]] = []
    for host in sorted(_due_hosts(connection, db), key=lambda host: busy.get(host, 0)):
        room = min(per_host - busy.get(host, 0), count - len(chosen))
        if room > 0:
            chosen += _due(connection, db, host, room)
    return chosen


def _take(connection: Connection, db: Database, sent: list[Row[Any]], lease_seconds: float) -> list[ClaimedDelivery]:
    _note_lost(connection, [row for row in sent if row.claim_id is not None], lease_seconds)
    claimed = connection.execute(
        update(webhook_deliveries)
        .where(webhook_deliveries.c.id.in_([row.id for row in sent]))
        .values(claim_id=new_batch_id(), due_at=db.now + lease_seconds, attempts=webhook_deliveries.c.attempts + 1)
        .returning(*webhook_deliveries.c["id", "job_id", "tenant", "url", "host", "body", "claim_id", "attempts"])
    )
    return [ClaimedDelivery(*row) for row in claimed]


def pause_seconds(seconds: float, retry_after: float | None) -> float:
    """From an attempt to the next one: as the schedule says, with jitter, and never shorter than the receiver asks."""
    return max(seconds * random.uniform(1.0, 1.0 + JITTER), min(retry_after or 0.0, MAX_RETRY_AFTER_SECONDS))


def _under_way(connection: Connection, db: Database) -> dict[str, int]:
    """How many deliveries to each host somebody holds."""
    d = webhook_deliveries.c
    counted = connection.execute(
        select(d.host, func.count().label("held")).where(CLAIMED_DELIVERY, PENDING, d.due_at > db.now).group_by(d.host)
    )
    return {row.host: row.held for row in counted}


def _due_hosts(connection: Connection, db: Database) -> list[str]:
    """The hosts with a delivery that is due, the longest due first.

    From host to host through the index, so that it takes a step for each of them and not for each delivery.
    """
    d = webhook_deliveries.c
    first = select(func.min(d.host).label("host")).where(PENDING).cte("hosts", recursive=True)
    further = select(func.min(d.host)).where(PENDING, d.host > first.c.host).correlate(first).scalar_subquery()
    hosts = first.union_all(select(further).where(first.c.host.is_not(None)))
    earliest = select(func.min(d.due_at)).where(PENDING, d.host == hosts.c.host).correlate(hosts).scalar_subquery()
    due = select(hosts.c.host, earliest.label("due_at")).where(hosts.c.host.is_not(None)).subquery("due")
    return list(connection.scalars(select(due.c.host).where(due.c.due_at <= db.now).order_by(due.c.due_at)))


def _due(connection: Connection, db: Database, host: str, limit: int) -> list[Row[Any]]:
    """Deliveries to a host that are due, locked; those that others have locked are passed over."""
    d = webhook_deliveries.c
    # In a subquery, which is evaluated once: PostgreSQL looks nothing up in an index by what is volatile.
    now = select(db.now).scalar_subquery()
    return list(
        connection.execute(
            select(*d["id", "tenant", "url", "called_for", "claim_id", "attempts", "due_at"])
            .where(PENDING, d.host == host, d.due_at <= now)
            .order_by(d.due_at, d.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
    )


def _skip(connection: Connection, row: Row[Any]) -> bool:
    """Take a delivery out if its endpoint is disabled. Returns whether it was."""
    if row.called_for:
        return False
    endpoint = read_endpoint(connection, row.tenant, row.url)
    if endpoint is None or endpoint.disabled_at is None:
        return False
    connection.execute(
        update(webhook_deliveries)
        .where(webhook_deliveries.c.id == row.id)
        .values(state=DeliveryState.SKIPPED.value, claim_id=None)
    )
    return True


def _note_lost(connection: Connection, lost: list[Row[Any]], lease_seconds: float) -> None:
    """Write down attempts whose lease is over."""
    if lost:
        connection.execute(
            insert(webhook_attempts),
            [
                {
                    "delivery_id": row.id,
                    "number": row.attempts,
                    "started_at": row.due_at - lease_seconds,
                    "reason": LOST,
                    "detail": "its sender was lost, or could not say what came of it; it may have been received",
                    "response": "",
                }
                for row in lost
            ],
        )


def _log(connection: Connection, claimed: ClaimedDelivery, attempt: Attempt, now: float) -> None:
    connection.execute(
        insert(webhook_attempts).values(
            delivery_id=claimed.id,
            number=claimed.attempt,
            started_at=now - attempt.seconds,
            seconds=attempt.seconds,
            reason=attempt.reason,
            # PostgreSQL has no place for NUL, and a receiver may answer anything.
            detail=attempt.detail.replace("\0", "\N{REPLACEMENT CHARACTER}"),
            status=attempt.status,
            response=attempt.response.replace("\0", "\N{REPLACEMENT CHARACTER}"),
        )
    )
