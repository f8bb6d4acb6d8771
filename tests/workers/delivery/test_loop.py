"""The delivering loop with a sender that has faults of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jobs.queue.accept import accept
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import Webhook
from jobs.webhooks.deliveries import Attempt, ClaimedDelivery, Patience, Settled, settle_delivery
from jobs.webhooks.delivery_log import DeliveryRecord, list_deliveries
from jobs.webhooks.tables import DeliveryState
from settings.delivery import DeliverySettings
from settings.jobs import StoreSettings
from tests.jobs.work import submission
from tests.services import wait_until
from webhooks.sending import Failed, Outcome, Sent
from workers.delivery import loop as delivering
from workers.delivery.loop import DeliveryLoop
from workers.delivery.metrics import DeliveryMetrics

HOOK = Webhook("https://hooks.example.com/scores", "hooks.example.com")


class FaultySender:
    """Does something first, of which it may die, then has everything delivered."""

    def __init__(self, *first: Callable[[], Outcome]) -> None:
        self._first = list(first)

    def send(self, url: str, headers: dict[str, str], body: bytes) -> Outcome:
        return self._first.pop(0)() if self._first else Sent(204, None, "", 0.1)


class CountedMetrics(DeliveryMetrics):
    """Also keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[str] = []
        self.ends: dict[DeliveryState, int] = {}

    def attempted(self, outcome: str) -> None:
        super().attempted(outcome)
        self.outcomes.append(outcome)

    def settled(self, state: DeliveryState, deliveries: int = 1) -> None:
        super().settled(state, deliveries)
        self.ends[state] = self.ends.get(state, 0) + deliveries


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    opened = Database.open(StoreSettings(database_url=sqlite_url))
    yield opened
    opened.close()


@contextmanager
def delivering_with(database: Database, sender: FaultySender, attempt_seconds: float = 5.0) -> Iterator[CountedMetrics]:
    settings = DeliverySettings(delivery_poll_seconds=0.02, webhook_retry_seconds=(0.1,))
    metrics = CountedMetrics()
    loop = DeliveryLoop(database, sender, settings, attempt_seconds, metrics)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield metrics
    finally:
        loop.stop()
        thread.join(20)
        assert not thread.is_alive()


def submitted(database: Database) -> str:
    return accept(database, submission(chunks=0, webhook=HOOK)).job_id


def delivery(database: Database, job_id: str) -> DeliveryRecord:
    (record,) = list_deliveries(database, "default", job_id)
    return record


def busy() -> Outcome:
    reason: Any = delivering.BUSY
    return Failed(reason, "too many names are being looked up", 0.1)


def broken() -> Outcome:
    raise RuntimeError("nobody thought of this")


def unwritable() -> Outcome:
    # Half of a character: the database would not have it.
    return Sent(500, None, "\ud800", 0.1)


def ended(database: Database, job_id: str) -> Callable[[], bool]:
    return lambda: delivery(database, job_id).state is not DeliveryState.PENDING


@pytest.mark.parametrize("fault", [broken, unwritable])
def test_a_fault_of_the_senders_own_is_a_failed_attempt_by_the_schedule(
    database: Database, fault: Callable[[], Outcome]
) -> None:
    job_id = submitted(database)
    with delivering_with(database, FaultySender(fault, fault)) as metrics:
        wait_until(ended(database, job_id), "the delivery ends", 20)
    record = delivery(database, job_id)
    assert record.state is DeliveryState.FAILED, "after the last attempt of its schedule"
    assert [attempt.reason for attempt in record.attempts] == ["internal", "internal"]
    assert metrics.outcomes == ["internal", "internal"]


def test_having_no_place_for_a_request_is_no_attempt(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "BUSY_SECONDS", 0.05)
    job_id = submitted(database)
    with delivering_with(database, FaultySender(*[busy] * 5)) as metrics:
        wait_until(ended(database, job_id), "the delivery ends", 20)
    record = delivery(database, job_id)
    assert record.state is DeliveryState.DELIVERED, "its schedule has but two attempts"
    assert [attempt.number for attempt in record.attempts] == [1]
    assert metrics.outcomes == ["busy"] * 5 + ["delivered"]


def test_having_no_place_for_a_request_puts_it_off(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "BUSY_SECONDS", 3_600.0)
    job_id = submitted(database)
    with delivering_with(database, FaultySender(busy)) as metrics:
        wait_until(lambda: metrics.outcomes, "it was tried", 20)
    following = delivery(database, job_id).next_attempt_at
    assert following is not None
    assert following > time.time() + 3_000.0


def test_an_outcome_that_can_not_be_stored_in_time_is_no_fault_of_the_senders(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request may have been received: its attempt is lost, and the delivery is sent again."""

    def away_at_first(
        store: Database, claimed: ClaimedDelivery, attempt: Attempt, patience: Patience
    ) -> Settled | None:
        if claimed.attempt == 1 and attempt.reason is None:
            raise StorageUnavailable("away")
        return settle_delivery(store, claimed, attempt, patience)

    monkeypatch.setattr(delivering, "settle_delivery", away_at_first)
    monkeypatch.setattr(delivering, "LEASE_SLACK_SECONDS", 1.0)
    # Longer than the lease: it gives up at once, while the claim is its own and a word of it would count.
    monkeypatch.setattr(delivering, "RETRY_SECONDS", 10.0)
    job_id = submitted(database)
    with delivering_with(database, FaultySender(), attempt_seconds=0.1) as metrics:
        wait_until(ended(database, job_id), "the delivery ends", 20)
    record = delivery(database, job_id)
    assert record.state is DeliveryState.DELIVERED
    assert record.attempts[0].reason == "lost"
    assert set(metrics.outcomes) == {"lost", "delivered"}


def test_what_is_skipped_is_counted(database: Database) -> None:
    job_ids = [submitted(database) for _ in range(2)]
    gone = Sent(410, None, "", 0.1)
    with delivering_with(database, FaultySender(lambda: gone, lambda: gone)) as metrics:
        wait_until(lambda: all(ended(database, job_id)() for job_id in job_ids), "both end", 20)
        job_id = submitted(database)
        wait_until(lambda: DeliveryState.SKIPPED in metrics.ends and ended(database, job_id)(), "it is skipped", 20)
    assert metrics.ends[DeliveryState.SKIPPED] >= 1
