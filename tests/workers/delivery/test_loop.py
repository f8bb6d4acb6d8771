"""The delivery loop with a sender that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jobs.queue.accept import accept
from jobs.store.database import Database, StorageUnavailable
from jobs.store.webhook_events import Webhook
from jobs.webhooks.deliveries import Attempt, ClaimedDelivery, DeliveryUpdate, RetryPolicy, record_attempt
from jobs.webhooks.delivery_log import DeliveryRecord, list_deliveries
from jobs.webhooks.tables import DeliveryState
from settings.delivery import DeliverySettings
from settings.store import StoreSettings
from tests.jobs.work import submission
from tests.services import wait_until
from tests.telemetry.recording import CALLER, TRACE_ID, RecordingTracer, attributes, context_of, parent_id, trace_id
from webhooks.sending import Failed, SendResult, Sent
from workers.delivery import loop as delivering
from workers.delivery.loop import DeliveryLoop
from workers.delivery.metrics import DeliveryMetrics

HOOK = Webhook("https://hooks.example.com/scores", "hooks.example.com")


class FaultySender:
    """Runs the given functions first, which may raise, and then delivers everything."""

    def __init__(self, *first: Callable[[], SendResult]) -> None:
        self._first = list(first)
        self.headers: list[dict[str, str]] = []  # of all attempts

    def send(self, url: str, headers: dict[str, str], body: bytes, owner: str = "") -> SendResult:
        self.headers.append(headers)
        return self._first.pop(0)() if self._first else Sent(204, None, "", 0.1)


class SlowSender(FaultySender):
    """Delivers nothing of the tenant ``slow`` before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.waiting = 0

    def send(self, url: str, headers: dict[str, str], body: bytes, owner: str = "") -> SendResult:
        if owner == "slow":
            self.waiting += 1
            self.goes_on.wait(20)
        return super().send(url, headers, body, owner)


class CountedMetrics(DeliveryMetrics):
    """Also keeps what is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[str] = []
        self.ends: dict[DeliveryState, int] = {}

    def attempted(self, outcome: str, seconds: float | None = None) -> None:
        super().attempted(outcome, seconds)
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
def delivering_with(
    database: Database,
    sender: FaultySender,
    attempt_seconds: float = 5.0,
    tracer: RecordingTracer | None = None,
    places: int = 32,
) -> Iterator[CountedMetrics]:
    settings = DeliverySettings(delivery_poll_seconds=0.02, webhook_retry_seconds=(0.1,), delivery_concurrency=places)
    metrics = CountedMetrics()
    loop = DeliveryLoop(database, sender, settings, attempt_seconds, metrics, tracer)
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


def busy() -> SendResult:
    reason: Any = delivering.BUSY
    return Failed(reason, "too many names are being looked up", 0.1)


def broken() -> SendResult:
    raise RuntimeError("nobody thought of this")


def unwritable() -> SendResult:
    # Half of a character: the database would not have it.
    return Sent(500, None, "\ud800", 0.1)


def ended(database: Database, job_id: str) -> Callable[[], bool]:
    return lambda: delivery(database, job_id).state is not DeliveryState.PENDING


@pytest.mark.parametrize("fault", [broken, unwritable])
def test_an_exception_of_the_sender_counts_as_a_failed_attempt(
    database: Database, fault: Callable[[], SendResult]
) -> None:
    job_id = submitted(database)
    with delivering_with(database, FaultySender(fault, fault)) as metrics:
        wait_until(ended(database, job_id), "the delivery ends", 20)
    record = delivery(database, job_id)
    assert record.state is DeliveryState.FAILED, "after the last attempt of its schedule"
    assert [attempt.reason for attempt in record.attempts] == ["internal", "internal"]
    assert metrics.outcomes == ["internal", "internal"]


def test_slow_receivers_of_a_tenant_leave_places_to_others(database: Database) -> None:
    for host in (f"r{n}.example" for n in range(9)):
        accept(database, submission(chunks=0, webhook=Webhook(f"https://{host}/", host), tenant="slow"))
    sender = SlowSender()
    with delivering_with(database, sender, places=4) as metrics:
        try:
            wait_until(lambda: sender.waiting == 3, "the slow ones take their places", 5)
            wait_until(ended(database, submitted(database)), "another tenant's is delivered", 5)
            assert sender.waiting == 3
        finally:
            sender.goes_on.set()
        wait_until(lambda: len(metrics.outcomes) == 10, "all are delivered", 20)


def test_a_busy_sender_does_not_count_as_an_attempt(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "BUSY_SECONDS", 0.05)
    job_id = submitted(database)
    with delivering_with(database, FaultySender(*[busy] * 5)) as metrics:
        wait_until(ended(database, job_id), "the delivery ends", 20)
    record = delivery(database, job_id)
    assert record.state is DeliveryState.DELIVERED, "its schedule has but two attempts"
    assert [attempt.number for attempt in record.attempts] == [1]
    assert metrics.outcomes == ["busy"] * 5 + ["delivered"]


def test_a_busy_sender_postpones_the_delivery(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "BUSY_SECONDS", 3_600.0)
    job_id = submitted(database)
    with delivering_with(database, FaultySender(busy)) as metrics:
        wait_until(lambda: metrics.outcomes, "it was tried", 20)
    following = delivery(database, job_id).next_attempt_at
    assert following is not None
    assert following > time.time() + 3_000.0


def test_an_attempt_whose_result_is_not_stored_in_time_is_lost_and_repeated(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver may have got the request, but nobody knows, so the delivery is sent again."""

    def away_at_first(
        store: Database, claimed: ClaimedDelivery, attempt: Attempt, policy: RetryPolicy
    ) -> DeliveryUpdate | None:
        if claimed.attempt == 1 and attempt.reason is None:
            raise StorageUnavailable("away")
        return record_attempt(store, claimed, attempt, policy)

    monkeypatch.setattr(delivering, "record_attempt", away_at_first)
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


def test_skipped_deliveries_are_counted(database: Database) -> None:
    job_ids = [submitted(database) for _ in range(2)]
    gone = Sent(410, None, "", 0.1)
    with delivering_with(database, FaultySender(lambda: gone, lambda: gone)) as metrics:
        wait_until(lambda: all(ended(database, job_id)() for job_id in job_ids), "both end", 20)
        job_id = submitted(database)
        wait_until(lambda: DeliveryState.SKIPPED in metrics.ends and ended(database, job_id)(), "it is skipped", 20)
    assert metrics.ends[DeliveryState.SKIPPED] >= 1


def failed() -> SendResult:
    return Sent(503, None, "", 0.1)


def test_each_attempt_has_a_span_in_the_trace_of_its_job_which_the_receiver_may_go_on_with(database: Database) -> None:
    sender, tracer = FaultySender(failed), RecordingTracer()
    job_id = accept(database, submission(chunks=0, webhook=HOOK, traceparent=CALLER)).job_id
    with delivering_with(database, sender, tracer=tracer):
        wait_until(ended(database, job_id), "the delivery ends", 20)
    spans = tracer.named("deliver webhook")
    assert {(trace_id(span), parent_id(span)) for span in spans} == {(TRACE_ID, CALLER.split("-")[2])}
    assert [span.status.is_ok for span in spans] == [False, True]
    assert [attributes(span)["http.response.status_code"] for span in spans] == [503, 204]
    assert [headers["traceparent"] for headers in sender.headers] == [context_of(span) for span in spans]
    assert not [span for span in spans if "scores" in span.to_json()], "the path of the URL may hold a secret"


def test_a_delivery_of_an_untraced_job_has_no_span(database: Database) -> None:
    sender, tracer = FaultySender(), RecordingTracer()
    job_id = submitted(database)
    with delivering_with(database, sender, tracer=tracer):
        wait_until(ended(database, job_id), "the delivery ends", 20)
    assert not tracer.spans
    assert "traceparent" not in sender.headers[0]
