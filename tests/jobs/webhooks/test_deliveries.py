"""Deliveries: stored with the end of their job, claimed with a fence, retried by the schedule, removed in time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from jobs.invariants import find_violations
from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.queue.ending import cancel, delete
from jobs.queue.lease import abandon
from jobs.queue.read import get_job
from jobs.queue.sweep import sweep
from jobs.queue.upload import abort_upload, accept_upload, begin_upload
from jobs.store.database import Database
from jobs.store.records import JobStatus, Origin
from jobs.store.webhook_events import Event
from jobs.webhooks import deliveries
from jobs.webhooks.deliveries import JITTER, MAX_RETRY_AFTER_SECONDS, Attempt, claim_deliveries, give_back, has_due
from jobs.webhooks.delivery_log import list_deliveries, redeliver
from jobs.webhooks.tables import DeliveryState
from scoring.error_codes import ErrorCode, RequestError
from tests.databases import ON_BOTH
from tests.jobs.conftest import HandClock
from tests.jobs.interleaving import once_after
from tests.jobs.sending import DAYS, HOOK, LEASE, OK, REFUSED, RETRY_SECONDS, URL, due, ended, hook, of, one, settle
from tests.jobs.work import CARD, at_once, finish_all, submission, submit, take


def succeed(store: Database) -> str:
    job_id = submit(store, webhook=HOOK)
    finish_all(store, take(store))
    return job_id


def succeed_without_items(store: Database) -> str:
    return ended(store)


def succeed_as_upload(store: Database) -> str:
    upload = begin_upload(store, submission(chunks=0, webhook=HOOK), None)
    accept_upload(store, upload, "hash")  # type: ignore[arg-type]
    return upload.job_id


def fail(store: Database) -> str:
    job_id = submit(store, webhook=HOOK)
    for _ in range(store.settings.max_attempts):
        abandon(store, take(store).batch_id, "it would not")
    return job_id


def cancel_it(store: Database) -> str:
    job_id = submit(store, webhook=HOOK)
    cancel(store, "default", job_id)
    cancel(store, "default", job_id)
    return job_id


def expire(store: Database) -> str:
    job_id = submit(store, webhook=HOOK, expires_in=1e-9)
    sweep(store)
    return job_id


@pytest.mark.parametrize(
    ("end", "event"),
    [
        (succeed, Event.SUCCEEDED),
        (succeed_without_items, Event.SUCCEEDED),
        (succeed_as_upload, Event.SUCCEEDED),
        (fail, Event.FAILED),
        (cancel_it, Event.CANCELLED),
        (expire, Event.EXPIRED),
    ],
)
def test_every_end_of_a_job_has_one_event(timed_store: Database, end: Callable[[Database], str], event: Event) -> None:
    job_id = end(timed_store)
    claimed = one(timed_store)
    assert claimed.id.startswith("msg_")
    assert (claimed.job_id, claimed.tenant, claimed.url, claimed.host) == (job_id, "default", URL, HOOK.host)
    body: dict[str, Any] = json.loads(claimed.body)
    assert body["type"] == event
    assert body["timestamp"].startswith("2027-01-15T08:00:0")
    assert body["data"]["id"] == job_id
    assert f"job.{body['data']['status']}" == event
    assert body["data"]["urls"]["self"] == f"/v1/jobs/{job_id}"
    assert of(timed_store, job_id).event == event
    assert due(timed_store) == []


def test_a_job_that_asks_for_nothing_or_for_other_ends_has_no_delivery(timed_store: Database) -> None:
    ended(timed_store, None)
    job_id = ended(timed_store, hook("a.example", Event.FAILED, Event.EXPIRED))
    assert not has_due(timed_store)
    assert list_deliveries(timed_store, "default", job_id) == []


@ON_BOTH
def test_an_abandoned_upload_has_no_event(timed_store: Database) -> None:
    """Its client was promised nothing, and has never had its id."""
    upload = begin_upload(timed_store, submission(chunks=0, webhook=HOOK), None)
    assert abort_upload(timed_store, upload.job_id)
    assert not has_due(timed_store)


def test_a_claimed_delivery_is_due_again_when_its_lease_is_over(timed_store: Database, clock: HandClock) -> None:
    job_id = ended(timed_store)
    first = one(timed_store)
    clock.turn(LEASE - 1)
    assert due(timed_store) == []
    clock.turn(2)
    second = one(timed_store)
    assert (second.id, second.body, second.attempt) == (first.id, first.body, 2)
    assert second.claim_id != first.claim_id
    # The late word of the first is fenced: the delivery is the second's.
    assert settle(timed_store, first, OK) is None
    assert settle(timed_store, second, OK) is DeliveryState.DELIVERED
    attempts = of(timed_store, job_id).attempts
    assert [(attempt.number, attempt.reason) for attempt in attempts] == [(1, "lost"), (2, None)]
    assert attempts[0].started_at == clock.now - LEASE - 1
    assert settle(timed_store, second, REFUSED) is None, "an end does not change"


@ON_BOTH
def test_simultaneous_claims_do_not_share_a_delivery(store: Database) -> None:
    jobs = {ended(store, hook(f"{n % 3}.example")) for n in range(30)}
    claims = at_once(6, lambda _: due(store, count=10, per_host=10))
    claimed = [delivery.job_id for found in claims for delivery in found]
    assert len(claimed) == len(set(claimed))
    assert {*claimed, *(delivery.job_id for delivery in due(store))} == jobs


def test_the_schedule_of_a_receiver_that_always_fails(timed_store: Database, clock: HandClock) -> None:
    job_id = ended(timed_store)
    for pause in RETRY_SECONDS:
        assert settle(timed_store, one(timed_store), REFUSED) is DeliveryState.PENDING
        following = of(timed_store, job_id).next_attempt_at
        assert following is not None
        assert pause <= following - clock.now <= pause * (1 + JITTER)
        clock.turn(pause - 1)
        assert due(timed_store) == [], "too early"
        clock.turn(pause * JITTER + 2)
    assert settle(timed_store, one(timed_store), REFUSED) is DeliveryState.FAILED
    record = of(timed_store, job_id)
    assert len(record.attempts) == len(RETRY_SECONDS) + 1 == 8
    assert (record.state, record.next_attempt_at) == (DeliveryState.FAILED, None)
    last = record.attempts[-1]
    assert (last.reason, last.status, last.response) == ("status", 500, "no\ufffdthing works")
    clock.turn(3 * DAYS)
    assert due(timed_store) == []


@pytest.mark.parametrize(
    ("asked", "least"), [(120.0, 120.0), (1.0, 5.0), (10 * DAYS, MAX_RETRY_AFTER_SECONDS), (None, 5.0)]
)
def test_retry_after_postpones_the_next_attempt(
    timed_store: Database, clock: HandClock, asked: float | None, least: float
) -> None:
    job_id = ended(timed_store)
    settle(timed_store, one(timed_store), Attempt("status", 0.1, status=429, retry_after=asked))
    following = of(timed_store, job_id).next_attempt_at
    assert following is not None
    assert least <= following - clock.now <= least * (1 + JITTER)


def test_a_redelivery_is_sent_again_and_its_success_enables_the_endpoint(
    timed_store: Database,
) -> None:
    job_id = ended(timed_store)
    first = one(timed_store)
    settle(timed_store, first, Attempt("status", 0.1, status=410))
    assert due(timed_store) == []
    assert redeliver(timed_store, "default", job_id, first.id).state is DeliveryState.PENDING
    again = one(timed_store)
    assert (again.id, again.body, again.attempt) == (first.id, first.body, 2)
    assert settle(timed_store, again, REFUSED) is DeliveryState.FAILED, "to a disabled endpoint once"
    redeliver(timed_store, "default", job_id, first.id)
    assert settle(timed_store, one(timed_store), OK) is DeliveryState.DELIVERED
    assert of(timed_store, job_id).endpoint is None
    ended(timed_store)
    assert settle(timed_store, one(timed_store), OK) is DeliveryState.DELIVERED
    # Also one that was delivered, and again by the whole schedule.
    redeliver(timed_store, "default", job_id, first.id)
    assert settle(timed_store, one(timed_store), REFUSED) is DeliveryState.PENDING


@ON_BOTH
def test_the_latest_attempts_of_a_delivery_are_kept(timed_store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "SHOWN_ATTEMPTS", 2)
    job_id, other = ended(timed_store), ended(timed_store)
    for claimed in due(timed_store):
        settle(timed_store, claimed, OK)
    for _ in range(2):
        redeliver(timed_store, "default", job_id, of(timed_store, job_id).id)
        settle(timed_store, one(timed_store), OK)
    assert [attempt.number for attempt in of(timed_store, job_id).attempts] == [2, 3]
    assert [attempt.number for attempt in of(timed_store, other).attempts] == [1]


@ON_BOTH
def test_redelivery_does_not_disturb_an_attempt_under_way(timed_store: Database) -> None:
    job_id = ended(timed_store)
    claimed = one(timed_store)
    redeliver(timed_store, "default", job_id, claimed.id)
    assert due(timed_store) == []
    assert settle(timed_store, claimed, OK) is DeliveryState.DELIVERED


def test_deliveries_of_other_tenants_can_not_be_seen_or_redelivered(timed_store: Database) -> None:
    job_id, other = ended(timed_store), ended(timed_store)
    delivery = of(timed_store, job_id).id
    with pytest.raises(RequestError) as hidden:
        list_deliveries(timed_store, "another", job_id)
    assert hidden.value.code is ErrorCode.JOB_NOT_FOUND
    with pytest.raises(RequestError) as hidden:
        redeliver(timed_store, "another", job_id, delivery)
    assert hidden.value.code is ErrorCode.JOB_NOT_FOUND
    with pytest.raises(RequestError) as missing:
        redeliver(timed_store, "default", other, delivery)
    assert missing.value.code is ErrorCode.NOT_FOUND


def test_an_upload_that_expires_before_it_is_accepted_sends_nothing(timed_store: Database, clock: HandClock) -> None:
    """No answer has promised that its job exists. A job whose client has its id sends its event in the same sweep."""
    upload = begin_upload(timed_store, submission(chunks=0, webhook=HOOK, expires_in=10.0), None)
    job_id = submit(timed_store, webhook=HOOK, expires_in=10.0)
    clock.turn(10)
    assert sorted(sweep(timed_store).job_ids) == sorted([upload.job_id, job_id])
    assert get_job(timed_store, "default", upload.job_id).status is JobStatus.EXPIRED
    assert list_deliveries(timed_store, "default", upload.job_id) == []
    assert of(timed_store, job_id).event == Event.EXPIRED
    assert find_violations(timed_store, full=True) == []


@pytest.mark.parametrize("table", ["webhook_deliveries", "webhook_attempts"])
def test_a_delivery_and_its_attempts_are_read_in_one_snapshot(store: Database, table: str) -> None:
    """With its attempts and its endpoint, though one more attempt is stored between the reads of them."""
    job_id = ended(store)
    claimed = one(store)
    once_after(store, f"FROM {table} ", lambda: settle(store, claimed, Attempt("status", 0.1, status=410)))
    shown = [of(store, job_id) for _ in range(2)]
    assert [(record.state, len(record.attempts), record.endpoint is not None) for record in shown] == [
        (DeliveryState.PENDING, 0, False),
        (DeliveryState.FAILED, 1, True),
    ]


@ON_BOTH
def test_a_delivery_that_is_given_back_counts_as_no_attempt(timed_store: Database, clock: HandClock) -> None:
    job_id = ended(timed_store)
    claimed = one(timed_store)
    assert give_back(timed_store, claimed, 5.0)
    record = of(timed_store, job_id)
    assert (record.next_attempt_at, record.attempts, record.endpoint) == (clock.now + 5.0, (), None)
    assert not give_back(timed_store, claimed, 5.0), "it is not this one's any more"
    clock.turn(6)
    again = one(timed_store)
    assert again.attempt == 1
    assert settle(timed_store, again, REFUSED) is DeliveryState.PENDING


@ON_BOTH
def test_a_claim_records_skipped_deliveries_and_lost_attempts(timed_store: Database, clock: HandClock) -> None:
    lost, failed = ended(timed_store), ended(timed_store)
    claimed = {delivery.job_id: delivery for delivery in due(timed_store)}
    settle(timed_store, claimed[failed], Attempt("status", 0.1, status=410))
    clock.turn(LEASE + 1)
    assert claim_deliveries(timed_store, 9, {}, per_host=9, lease_seconds=LEASE) == ([], 1)
    record = of(timed_store, lost)
    assert record.state is DeliveryState.SKIPPED
    assert [attempt.reason for attempt in record.attempts] == ["lost"]


@ON_BOTH
def test_deliveries_are_removed_with_their_jobs_unless_they_are_still_to_be_sent(
    timed_store: Database, clock: HandClock
) -> None:
    delivered, waiting = ended(timed_store), ended(timed_store, hook("b.example"))
    claimed = {delivery.job_id: delivery for delivery in due(timed_store)}
    settle(timed_store, claimed[delivered], OK)
    settle(timed_store, claimed[waiting], REFUSED)
    clock.turn(timed_store.settings.retention_seconds + 1)
    sweep(timed_store)
    with timed_store.read() as connection:
        kept = connection.execute(text("SELECT job_id FROM webhook_deliveries")).scalars().all()
        attempts = connection.execute(text("SELECT count(*) FROM webhook_attempts")).scalar()
    assert (kept, attempts) == ([waiting], 1)
    assert settle(timed_store, one(timed_store), OK) is DeliveryState.DELIVERED
    sweep(timed_store)
    with timed_store.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM webhook_deliveries")).scalar() == 0


def test_the_event_of_a_deleted_job_is_still_sent(timed_store: Database) -> None:
    running = submit(timed_store, webhook=HOOK)
    assert claim(timed_store, "worker", CARD, 1_000) is not None
    delete(timed_store, "default", running)
    claimed = one(timed_store)
    assert json.loads(claimed.body)["type"] == "job.cancelled"
    settle(timed_store, claimed, OK)
    sweep(timed_store)
    with timed_store.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM webhook_deliveries")).scalar() == 0


def test_the_end_of_a_call_without_a_webhook_costs_no_statement(store: Database) -> None:
    accept(store, submission(chunks=0, origin=Origin.CALL))
    assert not has_due(store)
