"""The delivering loop: claim what is due, send it, write down what came of it. SQL alone tells it what to do.

A request is sent outside of any transaction, in a thread of its own, of which there is a bounded number. What is
claimed is sent at once, so that a lease need only cover one attempt, which the sender bounds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog

from jobs.store.database import Database, StorageUnavailable
from jobs.webhooks.deliveries import (
    Attempt,
    Claim,
    ClaimedDelivery,
    Patience,
    Settled,
    claim_deliveries,
    give_back,
    has_due,
    settle_delivery,
)
from jobs.webhooks.secrets import live_secrets
from jobs.webhooks.tables import DeliveryState
from settings.delivery import DeliverySettings
from webhooks.sending import Failed, Outcome
from webhooks.signing import new_secret, sign
from workers.delivery.metrics import DeliveryMetrics

LEASE_SLACK_SECONDS = 15.0
"""What a claim outlasts its attempt by, to write down what came of it through a restart of the database."""

RETRY_SECONDS = 0.5

BUSY = "busy"
"""The sender's reason where it had no place for a request: nothing was sent."""
BUSY_SECONDS = 5.0
"""After which it is asked again."""
INTERNAL = Attempt("internal", 0.0, detail="a fault of the sender, which its own log tells")
"""An attempt of which an exception came."""

Result = TypeVar("Result")

log = structlog.stdlib.get_logger("delivery")


class Sending(Protocol):
    """What the loop asks of a sender: see :class:`webhooks.sending.Sender`."""

    def send(self, url: str, headers: dict[str, str], body: bytes) -> Outcome:
        """POST the body, and wait for the answer, for so long as was set."""


class _LeaseOverError(Exception):
    """The delivery is another's by now."""


class DeliveryLoop:
    """Delivers until stopped. :meth:`stop` may be called from any thread.

    attempt_seconds: that the sender takes at most.
    """

    def __init__(
        self,
        database: Database,
        sender: Sending,
        settings: DeliverySettings,
        attempt_seconds: float,
        metrics: DeliveryMetrics | None = None,
    ) -> None:
        self._database = database
        self._sender = sender
        self._settings = settings
        self._patience = Patience(settings.webhook_retry_seconds, settings.webhook_disable_seconds)
        self._lease_seconds = attempt_seconds + LEASE_SLACK_SECONDS
        self._metrics = metrics or DeliveryMetrics()
        self._changed = threading.Event()
        self._counting = threading.Lock()
        self._under_way = 0
        self._database_away = False
        self.stopping = threading.Event()

    def stop(self) -> None:
        """Claim nothing more; what is being sent is waited for."""
        self.stopping.set()
        self._changed.set()

    def run(self) -> None:
        """Deliver until stopped. Returns once all that was claimed is written down, or its lease is over."""
        with ThreadPoolExecutor(self._settings.delivery_concurrency, "delivering") as threads:
            while not self.stopping.is_set():
                self._changed.clear()
                claimed_at = time.monotonic()
                claimed = self._claim()
                for delivery in claimed:
                    with self._counting:
                        self._under_way += 1
                    threads.submit(self._deliver, delivery, claimed_at + self._lease_seconds)
                if not claimed:
                    self._changed.wait(self._settings.delivery_poll_seconds)

    def _claim(self) -> list[ClaimedDelivery]:
        free = self._settings.delivery_concurrency - self._under_way
        claimed = Claim([], 0)
        try:
            if free > 0 and has_due(self._database):
                claimed = claim_deliveries(
                    self._database,
                    free,
                    per_host=self._settings.delivery_host_concurrency,
                    lease_seconds=self._lease_seconds,
                )
        except StorageUnavailable as error:
            if not self._database_away:
                log.warning("the database is away; looking for deliveries until it is back", error=str(error))
            self._database_away = True
            return []
        self._metrics.looked()
        if self._database_away:
            log.info("the database is back")
        self._database_away = False
        self._metrics.settled(DeliveryState.SKIPPED, claimed.skipped)
        return claimed.deliveries

    def _deliver(self, delivery: ClaimedDelivery, lease_until: float) -> None:
        try:
            try:
                self._send_and_settle(delivery, lease_until)
            except _LeaseOverError:
                raise
            except Exception:
                # Whatever it is, it would be the same the next time: it goes by the schedule, not round and round.
                log.exception("an attempt failed", delivery_id=delivery.id, host=delivery.host)
                self._settle(delivery, INTERNAL, lease_until)
        except _LeaseOverError:
            self._metrics.attempted("lost")
            log.warning("what came of an attempt could not be stored", delivery_id=delivery.id, host=delivery.host)
        except Exception:
            log.exception("a failed attempt could not be stored", delivery_id=delivery.id, host=delivery.host)
        finally:
            with self._counting:
                self._under_way -= 1
            self._changed.set()

    def _send_and_settle(self, delivery: ClaimedDelivery, lease_until: float) -> None:
        attempt = self._attempt(delivery, lease_until)
        if attempt.reason == BUSY:
            # Nothing was sent, and it is not the receiver's fault.
            self._while_held(lease_until, lambda: give_back(self._database, delivery, BUSY_SECONDS))
            self._metrics.attempted(BUSY)
            log.warning("too busy for an attempt", delivery_id=delivery.id, host=delivery.host, reason=attempt.detail)
        else:
            self._settle(delivery, attempt, lease_until)

    def _settle(self, delivery: ClaimedDelivery, attempt: Attempt, lease_until: float) -> None:
        settled = self._while_held(
            lease_until, lambda: settle_delivery(self._database, delivery, attempt, self._patience)
        )
        self._say(delivery, attempt, settled)

    def _attempt(self, delivery: ClaimedDelivery, lease_until: float) -> Attempt:
        # Looked up for every attempt: from a rotation on, the new secret signs.
        secrets = self._while_held(
            lease_until - self._lease_seconds + LEASE_SLACK_SECONDS,
            lambda: live_secrets(self._database, delivery.tenant, new_secret),
        )
        timestamp = int(time.time())
        headers = {
            "content-type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign([one.secret for one in secrets], delivery.id, timestamp, delivery.body),
        }
        return to_attempt(self._sender.send(delivery.url, headers, delivery.body))

    def _while_held(self, until: float, action: Callable[[], Result]) -> Result:
        """Do something through an outage of the database. Raises _LeaseOverError at ``until`` (monotonic seconds)."""
        while True:
            try:
                return action()
            except StorageUnavailable as error:
                if time.monotonic() + RETRY_SECONDS > until:
                    raise _LeaseOverError from error
                time.sleep(RETRY_SECONDS)

    def _say(self, delivery: ClaimedDelivery, attempt: Attempt, settled: Settled | None) -> None:
        """Count and log an attempt. No URL: what it has behind its host may be its owner's secret."""
        if settled is None:
            self._metrics.attempted("lost")
            log.warning("an attempt took longer than its lease", delivery_id=delivery.id, host=delivery.host)
            return
        self._metrics.attempted(attempt.reason or "delivered")
        self._metrics.settled(settled.state)
        log.info(
            "delivered" if attempt.reason is None else "not delivered",
            delivery_id=delivery.id,
            job_id=delivery.job_id,
            host=delivery.host,
            attempt=delivery.attempt,
            reason=attempt.reason,
            status=attempt.status,
            state=str(settled.state),
            seconds=round(attempt.seconds, 3),
        )
        if settled.endpoint_disabled:
            self._metrics.disabled()
            log.warning(
                "an endpoint is disabled: redelivering to it with success enables it again",
                tenant=delivery.tenant,
                host=delivery.host,
                delivery_id=delivery.id,
                reason=attempt.reason,
                status=attempt.status,
            )


def to_attempt(outcome: Outcome) -> Attempt:
    """What a sender's outcome is to the log. Only a 2xx is a success."""
    if isinstance(outcome, Failed):
        return Attempt(outcome.reason, outcome.seconds, detail=outcome.detail)
    delivered = 200 <= outcome.status < 300
    return Attempt(
        reason=None if delivered else "status",
        seconds=outcome.seconds,
        detail="" if outcome.cut is None else f"the rest of the response was not read: {outcome.cut}",
        status=outcome.status,
        response=outcome.body_start,
        retry_after=outcome.retry_after,
    )
