"""Claiming deliveries that are due, and recording the results of attempts to send them.

As with scoring, a claim has a lease on the database's clock and an unguessable id as its fence. The request is sent
outside of any transaction, and its result is committed only if the row still has that id. If the sender dies in
between, the delivery is sent again with the same ``webhook-id``.

Order of locks: rows of deliveries, then the row of their endpoint. Nothing else is locked.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Row, delete, insert, select, update

from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.identifiers import new_batch_id
from jobs.webhooks.delivery_log import SHOWN_ATTEMPTS
from jobs.webhooks.delivery_order import choose_deliveries, due_tenants
from jobs.webhooks.endpoints import read_endpoint, record_failure, record_success
from jobs.webhooks.tables import PENDING, DeliveryState, webhook_attempts, webhook_deliveries

JITTER = 0.2  # largest share by which a pause is lengthened, so that failed deliveries are not all retried at once
MAX_RETRY_AFTER_SECONDS = 86_400.0  # by which a receiver may postpone the next attempt

GONE = 410
MAX_SKIPPING_ROUNDS = 100  # how often one claim chooses again because all of the chosen deliveries were skipped
LOST = "lost"
"""Reason of an attempt whose sender never stored a result. The receiver may have got the request."""


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery that is to be sent now."""

    id: str
    job_id: str
    tenant: str
    url: str
    host: str
    body: bytes
    claim_id: str  # the fence
    attempt: int  # number of this attempt, from 1
    traceparent: str | None = None  # of the request that submitted the job; None: it is not traced


class ClaimedDeliveries(NamedTuple):
    """The deliveries of one claim."""

    deliveries: list[ClaimedDelivery]
    skipped: int  # deliveries that ended as skipped because their endpoint is disabled


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of one attempt to send a delivery."""

    reason: str | None  # a short code for the failure; None if it was delivered
    seconds: float  # that the attempt took
    detail: str = ""
    status: int | None = None  # of the response, if there was one
    response: str = ""  # start of the response
    retry_after: float | None = None  # seconds, if the receiver asked for a pause


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When failed deliveries are retried, and when a failing endpoint is disabled."""

    retry_seconds: Sequence[float]  # pauses after failed attempts; with none left, the delivery has failed
    disable_seconds: float  # an endpoint that fails for this long without a success is disabled

    @property
    def max_pause_seconds(self) -> float:
        """The longest possible pause between two attempts."""
        return max(max(self.retry_seconds, default=0.0) * (1.0 + JITTER), MAX_RETRY_AFTER_SECONDS)


@dataclass(frozen=True, slots=True)
class DeliveryUpdate:
    """What the result of an attempt changed."""

    state: DeliveryState  # of the delivery, from now on
    endpoint_disabled: bool = False  # by this attempt


def has_due(db: Database) -> bool:
    """Whether a delivery is due. Cheaper than a claim, which on SQLite waits for other writers."""
    with db.read() as tx:
        return bool(due_tenants(tx))


def claim_deliveries(
    db: Database, places: int, held: Mapping[str, int], *, per_host: int, lease_seconds: float
) -> ClaimedDeliveries:
    """Claim due deliveries, in the order of :func:`jobs.webhooks.delivery_order.choose_deliveries`.

    Deliveries to a disabled endpoint are skipped, unless their owner asked for redelivery.

    places: how many deliveries this process sends at once. held: how many of each tenant it is sending now. per_host:
    how many deliveries to one host may be claimed at once, over all processes; two simultaneous claims may exceed it by
    what one of them takes. lease_seconds: after this the claim is void.
    """
    skipped = 0
    for _ in range(MAX_SKIPPING_ROUNDS):
        # A crash of the database may undo the claim. Then no row has its id, and the delivery is claimed again.
        with db.write(durable=False) as tx:
            chosen = choose_deliveries(tx, places, held, per_host)
            _store_lost_attempts(tx, [row for row in chosen if row.claim_id is not None], lease_seconds)
            sent = [row for row in chosen if not _skip_if_disabled(tx, row)]
            claimed = _claim_rows(tx, sent, lease_seconds) if sent else []
        skipped += len(chosen) - len(sent)
        if claimed or not chosen:
            return ClaimedDeliveries(claimed, skipped)
    return ClaimedDeliveries([], skipped)


def record_attempt(
    db: Database, claimed: ClaimedDelivery, attempt: Attempt, policy: RetryPolicy
) -> DeliveryUpdate | None:
    """Store the result of an attempt and when the next one is due. Raises StorageUnavailable.

    Returns None, and changes nothing, if the claim is void.
    """
    with db.write() as tx:
        row = tx.execute(
            select(webhook_deliveries)
            .where(webhook_deliveries.c.id == claimed.id, webhook_deliveries.c.claim_id == claimed.claim_id, PENDING)
            .with_for_update()
        ).one_or_none()
        if row is None:
            return None
        now = tx.execute(select(NOW)).scalar_one()
        _store_attempt(tx, claimed, attempt, now)
        changes: dict[str, Any] = {"claim_id": None}
        if attempt.reason is None:
            record_success(tx, row.tenant, row.url)
            settled = DeliveryUpdate(DeliveryState.DELIVERED)
        else:
            gone = attempt.status == GONE
            disabled, newly = record_failure(
                tx,
                row.tenant,
                row.url,
                now,
                gone=gone,
                disable_seconds=policy.disable_seconds,
                max_pause_seconds=policy.max_pause_seconds,
            )
            over = disabled or row.failures >= len(policy.retry_seconds)
            settled = DeliveryUpdate(DeliveryState.FAILED if over else DeliveryState.PENDING, newly)
            changes["failures"] = row.failures + 1
            if not over:
                changes["due_at"] = now + pause_seconds(policy.retry_seconds[row.failures], attempt.retry_after)
        tx.execute(
            update(webhook_deliveries)
            .where(webhook_deliveries.c.id == claimed.id)
            .values(state=settled.state.value, **changes)
        )
        return settled


def give_back(db: Database, claimed: ClaimedDelivery, seconds: float) -> bool:
    """Undo a claim of which nothing was sent: it counts as no attempt, and the delivery is due again in ``seconds``.

    Returns False if the claim was void. Raises StorageUnavailable.
    """
    with db.write() as tx:
        given = tx.execute(
            update(webhook_deliveries)
            .where(webhook_deliveries.c.id == claimed.id, webhook_deliveries.c.claim_id == claimed.claim_id, PENDING)
            .values(claim_id=None, due_at=NOW + seconds, attempts=webhook_deliveries.c.attempts - 1)
        )
        return bool(given.rowcount)


def _claim_rows(tx: Transaction, sent: list[Row[Any]], lease_seconds: float) -> list[ClaimedDelivery]:
    claimed = tx.execute(
        update(webhook_deliveries)
        .where(webhook_deliveries.c.id.in_([row.id for row in sent]))
        .values(claim_id=new_batch_id(), due_at=NOW + lease_seconds, attempts=webhook_deliveries.c.attempts + 1)
        .returning(*webhook_deliveries.c[_CLAIMED])
    )
    return [ClaimedDelivery(*row) for row in claimed]


_CLAIMED = ("id", "job_id", "tenant", "url", "host", "body", "claim_id", "attempts", "traceparent")


def pause_seconds(seconds: float, retry_after: float | None) -> float:
    """Return the pause before the next attempt: ``seconds`` with jitter, and at least what the receiver asked for."""
    return max(seconds * random.uniform(1.0, 1.0 + JITTER), min(retry_after or 0.0, MAX_RETRY_AFTER_SECONDS))


def _skip_if_disabled(tx: Transaction, row: Row[Any]) -> bool:
    """End a delivery as skipped if its endpoint is disabled. Returns whether it was skipped."""
    if row.called_for:
        return False
    endpoint = read_endpoint(tx, row.tenant, row.url)
    if endpoint is None or endpoint.disabled_at is None:
        return False
    tx.execute(
        update(webhook_deliveries)
        .where(webhook_deliveries.c.id == row.id)
        .values(state=DeliveryState.SKIPPED.value, claim_id=None)
    )
    return True


def _store_lost_attempts(tx: Transaction, lost: list[Row[Any]], lease_seconds: float) -> None:
    """Store attempts whose lease ended without a result."""
    if lost:
        tx.execute(
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


def _store_attempt(tx: Transaction, claimed: ClaimedDelivery, attempt: Attempt, now: float) -> None:
    tx.execute(
        insert(webhook_attempts).values(
            delivery_id=claimed.id,
            number=claimed.attempt,
            started_at=now - attempt.seconds,
            seconds=attempt.seconds,
            reason=attempt.reason,
            # PostgreSQL can't store NUL, and a receiver may respond with anything.
            detail=attempt.detail.replace("\0", "\N{REPLACEMENT CHARACTER}"),
            status=attempt.status,
            response=attempt.response.replace("\0", "\N{REPLACEMENT CHARACTER}"),
        )
    )
    if claimed.attempt > SHOWN_ATTEMPTS:  # Its owner may have it sent again without end.
        old = webhook_attempts.c.number <= claimed.attempt - SHOWN_ATTEMPTS
        tx.execute(delete(webhook_attempts).where(webhook_attempts.c.delivery_id == claimed.id, old))
