"""Ended jobs with webhooks, and claiming and recording their deliveries in tests."""

from __future__ import annotations

from jobs.store.database import Database
from jobs.store.webhook_events import Event, Webhook
from jobs.webhooks.deliveries import Attempt, ClaimedDelivery, RetryPolicy, claim_deliveries, record_attempt
from jobs.webhooks.delivery_log import DeliveryRecord, list_deliveries
from jobs.webhooks.tables import DeliveryState
from settings.delivery import DeliverySettings
from tests.jobs.work import submit

URL = "https://hooks.example.com/scores"
HOOK = Webhook(URL, "hooks.example.com")
DAYS = 86_400.0
LEASE = 45.0
RETRY_SECONDS = DeliverySettings().webhook_retry_seconds
RETRY_POLICY = RetryPolicy(RETRY_SECONDS, 5 * DAYS)
OK = Attempt(None, 0.2, status=204)
REFUSED = Attempt("status", 0.2, status=500, response="no\0thing works")


def hook(host: str, *events: Event) -> Webhook:
    """A webhook to this host, for these ends of a job; for all of them if none is named."""
    return Webhook(f"https://{host}/", host, events or tuple(Event))


def ended(store: Database, webhook: Webhook | None = HOOK) -> str:
    """A job without items, which has succeeded with its acceptance."""
    return submit(store, chunks=0, webhook=webhook)


def due(store: Database, places: int = 100, per_host: int = 100, **held: int) -> list[ClaimedDelivery]:
    """Claim what is due. held: the places that tenants have already."""
    return claim_deliveries(store, places, held, per_host=per_host, lease_seconds=LEASE).deliveries


def one(store: Database) -> ClaimedDelivery:
    """The same, and insist on there being one."""
    (claimed,) = due(store)
    return claimed


def settle(store: Database, claimed: ClaimedDelivery, attempt: Attempt) -> DeliveryState | None:
    """Settle with :data:`RETRY_POLICY`; returns the delivery's state from now on, None if the claim was void."""
    settled = record_attempt(store, claimed, attempt, RETRY_POLICY)
    return settled.state if settled else None


def of(store: Database, job_id: str) -> DeliveryRecord:
    """A job's delivery, as its owner sees it."""
    (delivery,) = list_deliveries(store, "default", job_id)
    return delivery
