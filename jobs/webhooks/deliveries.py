"""Handing deliveries to those who send them, and writing down what came of it.

Like work: a claim has a lease on the database's clock and an unguessable fence, the request is sent outside of any
transaction, and its outcome is committed under the fence. Who dies in between has it sent again, under the same id.

Deliveries lock their own rows, then their endpoint's, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, insert, select, update

from jobs.store.database import Database
from jobs.store.identifiers import new_batch_id
from jobs.webhooks.delivery_order import choose_deliveries, due_tenants
from jobs.webhooks.endpoints import note_failure, note_success, read_endpoint
from jobs.webhooks.tables import PENDING, DeliveryState, webhook_attempts, webhook_deliveries

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


class Claim(NamedTuple):
    """What a claim came to. skipped: how many it took out, for their endpoint is disabled."""

    deliveries: list[ClaimedDelivery]
    skipped: int


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

    @property
    def longest_pause(self) -> float:
        """Seconds from an attempt to the next one, at most."""
        return max(max(self.retry_seconds, default=0.0) * (1.0 + JITTER), MAX_RETRY_AFTER_SECONDS)


@dataclass(frozen=True, slots=True)
class Settled:
    """What an attempt's outcome meant. state: of the delivery from now on; endpoint_disabled: with this attempt."""

    state: DeliveryState
    endpoint_disabled: bool = False


def has_due(db: Database) -> bool:
    """Whether a delivery is due: a cheap look before a claim, which on SQLite waits for whoever writes."""
    with db.read() as connection:
        return bool(due_tenants(connection, db))


def claim_deliveries(db: Database, count: int, *, per_host: int, lease_seconds: float) -> Claim:
    """Claim deliveries that are due, ``count`` at most, in the order of
    :func:`jobs.webhooks.delivery_order.choose_deliveries`.

    per_host: so many of a host may be under way, whoever sends them; two who claim at once may exceed it, by one claim.
    lease_seconds: after which a claim is void. Those to a disabled endpoint are skipped, unless their owner called for
    them.
    """
    skipped = 0
    for _ in range(SKIPS):
        # A crash of the database may undo the claim; then its fence is unknown, and the delivery is claimed again.
        with db.write(durable=False) as connection:
            chosen = choose_deliveries(connection, db, count, per_host)
            _note_lost(connection, [row for row in chosen if row.claim_id is not None], lease_seconds)
            sent = [row for row in chosen if not _skip(connection, row)]
            claimed = _take(connection, db, sent, lease_seconds) if sent else []
        skipped += len(chosen) - len(sent)
        if claimed or not chosen:
            return Claim(claimed, skipped)
    return Claim([], skipped)


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
                connection,
                db,
                row.tenant,
                row.url,
                now,
                gone=gone,
                disable_seconds=patience.disable_seconds,
                longest_pause=patience.longest_pause,
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


def give_back(db: Database, claimed: ClaimedDelivery, seconds: float) -> bool:
    """Undo a claim with which nothing was sent: no attempt, due again in so many seconds. False if the claim was void.

    Raises StorageUnavailable.
    """
    with db.write() as connection:
        given = connection.execute(
            update(webhook_deliveries)
            .where(webhook_deliveries.c.id == claimed.id, webhook_deliveries.c.claim_id == claimed.claim_id, PENDING)
            .values(claim_id=None, due_at=db.now + seconds, attempts=webhook_deliveries.c.attempts - 1)
        )
        return bool(given.rowcount)


def _take(connection: Connection, db: Database, sent: list[Row[Any]], lease_seconds: float) -> list[ClaimedDelivery]:
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
