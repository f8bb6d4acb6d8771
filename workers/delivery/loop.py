"""The delivery loop: claim deliveries that are due, send them, and store the results. It finds work by polling SQL.

Requests are sent outside of any transaction, by a bounded number of threads. A claimed delivery is sent at once, so its
lease has to cover only one attempt, and the sender limits how long that takes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, TypeVar

import structlog

from jobs.store.database import Database, StorageUnavailable
from jobs.webhooks.deliveries import (
    Attempt,
    ClaimedDeliveries,
    ClaimedDelivery,
    RetryPolicy,
    claim_deliveries,
    give_back,
    has_due,
    record_attempt,
)
from jobs.webhooks.secrets import live_secrets
from jobs.webhooks.tables import DeliveryState
from settings.delivery import DeliverySettings
from telemetry.tracing import Attributes, Span, SpanKind, Tracer
from webhooks.sending import Failed, SendResult
from webhooks.signing import new_secret, sign
from workers.delivery.metrics import DeliveryMetrics

LEASE_SLACK_SECONDS = 15.0
"""How much longer than an attempt its lease is, so that its result can be stored after a restart of the database."""

RETRY_SECONDS = 0.5

BUSY = "busy"  # the sender's reason if it could not start a request: nothing was sent
BUSY_SECONDS = 5.0  # until such a delivery is due again
INTERNAL = Attempt("internal", 0.0, detail="a fault of the sender, which its own log tells")
"""The result of an attempt that raised an exception."""

Result = TypeVar("Result")

log = structlog.stdlib.get_logger("delivery")


class WebhookSender(Protocol):
    """What the loop needs of :class:`webhooks.sending.Sender`."""

    def send(self, url: str, headers: dict[str, str], body: bytes, owner: str = "") -> SendResult:
        """POST the body and wait for the response, with a time limit. owner: whose webhook it is."""


class _LeaseOverError(Exception):
    """The lease of the delivery is over, so another process may have claimed it."""


class DeliveryLoop:
    """Delivers until stopped. :meth:`stop` may be called from any thread."""

    def __init__(
        self,
        database: Database,
        sender: WebhookSender,
        settings: DeliverySettings,
        attempt_seconds: float,  # the longest time that the sender takes for one request
        metrics: DeliveryMetrics | None = None,
        tracer: Tracer | None = None,  # None: there are no traces
    ) -> None:
        self._database = database
        self._sender = sender
        self._settings = settings
        self._retry_policy = RetryPolicy(settings.webhook_retry_seconds, settings.webhook_disable_seconds)
        self._lease_seconds = attempt_seconds + LEASE_SLACK_SECONDS
        self._metrics = metrics or DeliveryMetrics()
        self._tracer = tracer
        self._changed = threading.Event()
        self._counting = threading.Lock()
        self._under_way: Counter[str] = Counter()  # by tenant
        self.stopping = threading.Event()

    def stop(self) -> None:
        """Claim no more deliveries. :meth:`run` returns when the requests under way have ended."""
        self.stopping.set()
        self._changed.set()

    def run(self) -> None:
        """Deliver until stopped. Returns once the result of every claimed delivery is stored, or its lease is over."""
        with ThreadPoolExecutor(self._settings.delivery_concurrency, "delivering") as threads:
            while not self.stopping.is_set():
                self._changed.clear()
                claimed_at = time.monotonic()
                claimed = self._claim()
                for delivery in claimed:
                    with self._counting:
                        self._under_way[delivery.tenant] += 1
                    threads.submit(self._deliver, delivery, claimed_at + self._lease_seconds)
                if not claimed:
                    self._changed.wait(self._settings.delivery_poll_seconds)

    def _claim(self) -> list[ClaimedDelivery]:
        places = self._settings.delivery_concurrency
        with self._counting:
            held = +self._under_way
        claimed = ClaimedDeliveries([], 0)
        with suppress(StorageUnavailable):
            if held.total() < places and has_due(self._database):
                claimed = claim_deliveries(
                    self._database,
                    places,
                    held,
                    per_host=self._settings.delivery_host_concurrency,
                    lease_seconds=self._lease_seconds,
                )
            self._metrics.looked()
        self._metrics.settled(DeliveryState.SKIPPED, claimed.skipped)
        return claimed.deliveries

    def _deliver(self, delivery: ClaimedDelivery, lease_until: float) -> None:
        if self._tracer is None or delivery.traceparent is None:
            self._deliver_once(delivery, lease_until)
            return
        attributes: Attributes = {
            "scoreline.delivery.id": delivery.id,
            "scoreline.delivery.attempt": delivery.attempt,
            "scoreline.job.id": delivery.job_id,
            "server.address": delivery.host,
        }
        with (
            self._tracer.span(
                "deliver webhook", SpanKind.CLIENT, parent=delivery.traceparent, attributes=attributes
            ) as span,
            structlog.contextvars.bound_contextvars(**span.log_fields),
        ):
            self._deliver_once(delivery, lease_until, span)

    def _deliver_once(self, delivery: ClaimedDelivery, lease_until: float, span: Span | None = None) -> None:
        try:
            try:
                self._send_and_record(delivery, lease_until, span)
            except _LeaseOverError:
                raise
            except Exception:
                # It would probably fail again at once, so it counts as a failed attempt and is retried by the schedule.
                log.exception("an attempt failed", delivery_id=delivery.id, host=delivery.host)
                self._record_attempt(delivery, INTERNAL, lease_until)
        except _LeaseOverError:
            self._metrics.attempted("lost")
            log.warning("what came of an attempt could not be stored", delivery_id=delivery.id, host=delivery.host)
        except Exception:
            log.exception("a failed attempt could not be stored", delivery_id=delivery.id, host=delivery.host)
        finally:
            with self._counting:
                self._under_way[delivery.tenant] -= 1
            self._changed.set()

    def _send_and_record(self, delivery: ClaimedDelivery, lease_until: float, span: Span | None) -> None:
        attempt = self._attempt(delivery, lease_until, span)
        if span is not None:
            _set_outcome(span, attempt)
        if attempt.reason == BUSY:
            # Nothing was sent, so this does not count as an attempt.
            self._retry_while_claimed(lease_until, lambda: give_back(self._database, delivery, BUSY_SECONDS))
            self._metrics.attempted(BUSY)
            log.warning("too busy for an attempt", delivery_id=delivery.id, host=delivery.host, reason=attempt.detail)
        else:
            self._record_attempt(delivery, attempt, lease_until)

    def _record_attempt(self, delivery: ClaimedDelivery, attempt: Attempt, lease_until: float) -> None:
        """Store, count and log an attempt. The URL is not logged: its path and query may hold a secret."""
        settled = self._retry_while_claimed(
            lease_until, lambda: record_attempt(self._database, delivery, attempt, self._retry_policy)
        )
        if settled is None:
            self._metrics.attempted("lost")
            log.warning("an attempt took longer than its lease", delivery_id=delivery.id, host=delivery.host)
            return
        self._metrics.attempted(attempt.reason or "delivered", attempt.seconds)
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

    def _attempt(self, delivery: ClaimedDelivery, lease_until: float, span: Span | None) -> Attempt:
        # Read for every attempt, so that a new secret signs from its rotation on.
        secrets = self._retry_while_claimed(
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
        if span is not None and span.traceparent is not None:
            headers["traceparent"] = span.traceparent
        return attempt_from_result(self._sender.send(delivery.url, headers, delivery.body, delivery.tenant))

    def _retry_while_claimed(self, until: float, action: Callable[[], Result]) -> Result:
        """Repeat an action while the database is away. Raises _LeaseOverError at ``until`` (monotonic seconds)."""
        while True:
            try:
                return action()
            except StorageUnavailable as error:
                if time.monotonic() + RETRY_SECONDS > until:
                    raise _LeaseOverError from error
                time.sleep(RETRY_SECONDS)


def _set_outcome(span: Span, attempt: Attempt) -> None:
    """Say in a span what came of an attempt."""
    if attempt.status is not None:
        span.set({"http.response.status_code": attempt.status})
    if attempt.reason is not None:
        span.set({"error.type": attempt.reason})
        span.fail(attempt.reason)


def attempt_from_result(outcome: SendResult) -> Attempt:
    """Convert what the sender returned into what is stored. Only a status of 2xx is a success."""
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
