"""Deliveries: stored with the end of their job, claimed under a fence, tried by the schedule, taken away in time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from jobs.accept import accept
from jobs.claim import claim
from jobs.database import Database
from jobs.deliveries import (
    JITTER,
    MAX_RETRY_AFTER_SECONDS,
    Attempt,
    ClaimedDelivery,
    Patience,
    claim_deliveries,
    give_back,
    has_due,
    settle_delivery,
)
from jobs.delivery_log import DeliveryRecord, list_deliveries, redeliver
from jobs.delivery_order import LOOKED_AT
from jobs.ending import cancel, delete
from jobs.endpoints import find_endpoint, forget_endpoints, note_failure
from jobs.identifiers import new_job_id, new_message_id
from jobs.lease import abandon
from jobs.records import Event, Origin, Webhook
from jobs.sweep import sweep
from jobs.upload import accept_upload, begin_upload, give_up
from jobs.webhook_tables import DeliveryState, webhook_deliveries, webhook_endpoints
from scoring.errors import ErrorCode, RequestError
from settings.delivery import DeliverySettings
from tests.jobs.conftest import HandClock
from tests.jobs.work import CARD, at_once, finish_all, submission, submit, take
from tests.services import wait_until

URL = "https://hooks.example.com/scores"
HOOK = Webhook(URL, "hooks.example.com")
DAYS = 86_400.0
LEASE = 45.0
RETRY_SECONDS = DeliverySettings().webhook_retry_seconds
PATIENCE = Patience(RETRY_SECONDS, 5 * DAYS)
SHORT = Patience(RETRY_SECONDS, 2 * DAYS)
OK = Attempt(None, 0.2, status=204)
REFUSED = Attempt("status", 0.2, status=500, response="no\0thing works")


def hook(host: str, *events: Event) -> Webhook:
    return Webhook(f"https://{host}/", host, events or tuple(Event))


def ended(store: Database, webhook: Webhook | None = HOOK) -> str:
    """A job without items, which has succeeded with its acceptance."""
    return submit(store, chunks=0, webhook=webhook)


def due(store: Database, count: int = 100, per_host: int = 100) -> list[ClaimedDelivery]:
    return claim_deliveries(store, count, per_host=per_host, lease_seconds=LEASE).deliveries


def pile_up(store: Database, tenant: str, hosts: Iterable[str]) -> None:
    """A delivery that is due to each of the hosts, as fast as rows can be stored."""
    with store.write() as connection:
        now = connection.execute(select(store.now)).scalar_one()
        rows = [
            {
                "id": new_message_id(),
                "job_id": new_job_id(),
                "tenant": tenant,
                "event": Event.SUCCEEDED.value,
                "url": f"https://{host}/",
                "host": host,
                "body": b"{}",
                "state": DeliveryState.PENDING.value,
                "due_at": now,
                "attempts": 0,
                "failures": 0,
                "created_at": now,
                "remove_at": now + 7 * DAYS,
            }
            for host in hosts
        ]
        connection.execute(insert(webhook_deliveries), rows)


def one(store: Database) -> ClaimedDelivery:
    (claimed,) = due(store)
    return claimed


def settle(store: Database, claimed: ClaimedDelivery, attempt: Attempt) -> DeliveryState | None:
    settled = settle_delivery(store, claimed, attempt, PATIENCE)
    return settled.state if settled else None


def of(store: Database, job_id: str) -> DeliveryRecord:
    (delivery,) = list_deliveries(store, "default", job_id)
    return delivery


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
    job_id = submit(store, webhook=HOOK, expires_in=1.0)
    store.clock.turn(2.0)  # type: ignore[union-attr]
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


def test_an_upload_that_is_given_up_tells_nobody(timed_store: Database) -> None:
    """Its client was promised nothing, and has never had its id."""
    upload = begin_upload(timed_store, submission(chunks=0, webhook=HOOK), None)
    assert give_up(timed_store, upload.job_id)
    assert not has_due(timed_store)


def test_a_delivery_is_held_by_one_and_again_due_when_its_lease_is_over(
    timed_store: Database, clock: HandClock
) -> None:
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


def test_of_many_that_claim_at_once_each_delivery_goes_to_one(store: Database) -> None:
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
def test_retry_after_puts_the_next_attempt_off(
    timed_store: Database, clock: HandClock, asked: float | None, least: float
) -> None:
    job_id = ended(timed_store)
    settle(timed_store, one(timed_store), Attempt("status", 0.1, status=429, retry_after=asked))
    following = of(timed_store, job_id).next_attempt_at
    assert following is not None
    assert least <= following - clock.now <= least * (1 + JITTER)


def test_a_receiver_that_is_gone_gets_nothing_more(timed_store: Database, clock: HandClock) -> None:
    first, second = ended(timed_store), ended(timed_store)
    other = ended(timed_store, hook("other.example"))
    claimed = {delivery.job_id: delivery for delivery in due(timed_store, per_host=1)}
    assert claimed.keys() == {first, other}
    settled = settle_delivery(timed_store, claimed[first], Attempt("status", 0.1, status=410), PATIENCE)
    assert settled is not None
    assert (settled.state, settled.endpoint_disabled) == (DeliveryState.FAILED, True)
    later = ended(timed_store)
    assert due(timed_store) == [], "what waits for it is skipped"
    assert [of(timed_store, job_id).state for job_id in (first, second, later)] == ["failed", "skipped", "skipped"]
    endpoint = of(timed_store, later).endpoint
    assert endpoint is not None
    assert endpoint.disabled_at == clock.now
    assert settle(timed_store, claimed[other], OK) is DeliveryState.DELIVERED


def test_another_tenants_endpoint_at_the_same_url_goes_on(timed_store: Database) -> None:
    ended(timed_store)
    settle(timed_store, one(timed_store), Attempt("status", 0.1, status=410))
    submit(timed_store, chunks=0, webhook=HOOK, tenant="another")
    assert one(timed_store).tenant == "another"


def test_an_endpoint_that_fails_for_days_is_disabled_and_one_success_between_is_enough(
    timed_store: Database, clock: HandClock
) -> None:
    def fails() -> bool:
        ended(timed_store)
        settled = settle_delivery(timed_store, due(timed_store)[0], REFUSED, SHORT)
        assert settled is not None
        return settled.endpoint_disabled

    def half_a_day() -> None:
        clock.turn(DAYS / 2)

    for _ in range(3):
        assert not fails()
        half_a_day()
    ended(timed_store)
    for claimed in due(timed_store):
        settle(timed_store, claimed, OK)
    for _ in range(4):
        assert not fails()
        half_a_day()
    assert fails(), "two days without a success"
    assert due(timed_store) == []


@pytest.mark.parametrize("swept", [False, True])
def test_failures_a_long_time_apart_are_not_days_of_failing(
    timed_store: Database, clock: HandClock, swept: bool
) -> None:
    for _ in range(4):
        ended(timed_store, HOOK)
        (claimed, *_) = due(timed_store)
        settled = settle_delivery(timed_store, claimed, Attempt("status", 0.1, status=500), SHORT)
        assert settled is not None
        assert not settled.endpoint_disabled
        with timed_store.write() as connection:
            connection.exec_driver_sql("DELETE FROM webhook_deliveries")
        clock.turn(2.5 * DAYS)
        if swept:
            sweep(timed_store)
            with timed_store.read() as connection:
                assert connection.exec_driver_sql("SELECT count(*) FROM webhook_endpoints").scalar() == 0


def test_who_asks_for_the_longest_pause_is_disabled_all_the_same(timed_store: Database, clock: HandClock) -> None:
    busy = Attempt("status", 0.1, status=503, retry_after=MAX_RETRY_AFTER_SECONDS)
    job_id = ended(timed_store)
    for day in range(6):
        settled = settle_delivery(timed_store, one(timed_store), busy, PATIENCE)
        assert settled is not None
        assert settled.endpoint_disabled == (day == 5)
        clock.turn(DAYS + 60)
        sweep(timed_store)
    assert of(timed_store, job_id).state is DeliveryState.FAILED


def test_a_pause_that_is_longer_than_a_day_is_no_fresh_start(timed_store: Database, clock: HandClock) -> None:
    weekly = Patience((7 * DAYS,) * 3, 5 * DAYS)
    ended(timed_store)
    settle_delivery(timed_store, one(timed_store), REFUSED, weekly)
    clock.turn(7 * DAYS * (1 + JITTER))
    sweep(timed_store)
    settled = settle_delivery(timed_store, one(timed_store), REFUSED, weekly)
    assert settled is not None
    assert settled.endpoint_disabled


def test_of_two_failures_at_once_the_one_that_disables_counts(postgres_store: Database) -> None:
    """The first that an endpoint has: there is no row yet for the second to wait for."""
    waiting = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")

    def second_waits() -> bool:
        with postgres_store.read() as looking:
            return looking.scalar(waiting) is not None

    def fail(*, gone: bool) -> tuple[bool, bool]:
        with postgres_store.write() as connection:
            failed = note_failure(
                connection, postgres_store, "default", URL, 1e9, gone=gone, disable_seconds=DAYS, longest_pause=DAYS
            )
            if gone:
                second.append(pool.submit(fail, gone=False))
                wait_until(second_waits, "the other failure waits")
            return failed

    second: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        assert fail(gone=True) == (True, True)
        assert second[0].result() == (True, False)
    endpoint = find_endpoint(postgres_store, "default", URL)
    assert endpoint is not None
    assert endpoint.disabled_at == 1e9


def test_what_is_to_be_forgotten_of_endpoints_is_found_by_an_index(postgres_store: Database) -> None:
    with postgres_store.write() as connection:
        connection.exec_driver_sql("SET LOCAL enable_seqscan TO off")
        compiled = select(webhook_endpoints).where(forget_endpoints(postgres_store)).compile(connection)
        plan = connection.exec_driver_sql(f"EXPLAIN {compiled}").scalars().all()
    assert any("Index Cond" in line for line in plan), plan


def test_a_delivery_that_is_called_for_is_sent_again_and_its_success_enables_the_endpoint(
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


def test_calling_for_a_delivery_does_not_disturb_the_attempt_under_way(timed_store: Database) -> None:
    job_id = ended(timed_store)
    claimed = one(timed_store)
    redeliver(timed_store, "default", job_id, claimed.id)
    assert due(timed_store) == []
    assert settle(timed_store, claimed, OK) is DeliveryState.DELIVERED


def test_what_is_not_the_tenants_can_not_be_seen_or_called_for(timed_store: Database) -> None:
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


def test_a_host_has_so_many_at_once_and_hides_no_other(timed_store: Database, clock: HandClock) -> None:
    for _ in range(20):
        ended(timed_store, hook("slow.example"))
    clock.turn(1)
    ended(timed_store, hook("quick.example"))
    assert sorted(delivery.host for delivery in due(timed_store, count=3, per_host=2)) == [
        "quick.example",
        "slow.example",
        "slow.example",
    ]
    ended(timed_store, hook("quick.example"))
    assert [delivery.host for delivery in due(timed_store, count=10, per_host=2)] == ["quick.example"]
    # Whose senders were lost is not under way any more.
    clock.turn(LEASE + 1)
    assert [delivery.host for delivery in due(timed_store, count=4, per_host=2)].count("slow.example") == 2


def test_what_waits_for_its_next_attempt_is_left_beside_what_is_due(timed_store: Database, clock: HandClock) -> None:
    ended(timed_store)
    settle(timed_store, one(timed_store), REFUSED)
    job_id = ended(timed_store)
    assert one(timed_store).job_id == job_id


def test_the_host_with_the_fewest_under_way_comes_first(timed_store: Database, clock: HandClock) -> None:
    for _ in range(3):
        ended(timed_store, hook("slow.example"))
    assert len(due(timed_store, count=1)) == 1
    clock.turn(1)
    ended(timed_store, hook("quick.example"))
    assert [delivery.host for delivery in due(timed_store, count=1)] == ["quick.example"]


def test_a_tenant_with_many_hosts_is_before_nobody(timed_store: Database, clock: HandClock) -> None:
    pile_up(timed_store, "many", (f"r{n}.example" for n in range(1_000)))
    clock.turn(1)
    pile_up(timed_store, "single", ["hooks.example"])
    assert sorted(delivery.tenant for delivery in due(timed_store, count=3)) == ["many", "many", "single"]
    clock.turn(1)
    pile_up(timed_store, "single", ["hooks.example"])
    assert [delivery.tenant for delivery in due(timed_store, count=1)] == ["single"], "the other has two under way"
    assert len(due(timed_store, count=2_000)) <= 2 * LOOKED_AT, "a look goes no further"


def test_tenants_take_turns_at_a_host_they_share(timed_store: Database, clock: HandClock) -> None:
    pile_up(timed_store, "many", ["hooks.example"] * 1_000)
    clock.turn(1)
    pile_up(timed_store, "single", ["hooks.example"])
    claimed = due(timed_store, per_host=2)
    assert sorted(delivery.tenant for delivery in claimed) == ["many", "single"]
    assert due(timed_store, per_host=2) == [], "so many of a host, whoseever they are"


def test_a_tenants_pile_to_one_host_hides_none_of_its_others(timed_store: Database, clock: HandClock) -> None:
    pile_up(timed_store, "default", ["slow.example"] * (LOOKED_AT + 5))
    clock.turn(1)
    pile_up(timed_store, "default", [f"r{n}.example" for n in range(3)])
    hosts = [delivery.host for delivery in due(timed_store, per_host=2)]
    assert sorted(hosts) == ["r0.example", "r1.example", "r2.example", "slow.example", "slow.example"]


def test_a_delivery_that_is_given_back_was_no_attempt(timed_store: Database, clock: HandClock) -> None:
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


def test_a_claim_tells_what_it_skips_and_what_was_lost_before(timed_store: Database, clock: HandClock) -> None:
    lost, failed = ended(timed_store), ended(timed_store)
    claimed = {delivery.job_id: delivery for delivery in due(timed_store)}
    settle(timed_store, claimed[failed], Attempt("status", 0.1, status=410))
    clock.turn(LEASE + 1)
    assert claim_deliveries(timed_store, 9, per_host=9, lease_seconds=LEASE) == ([], 1)
    record = of(timed_store, lost)
    assert record.state is DeliveryState.SKIPPED
    assert [attempt.reason for attempt in record.attempts] == ["lost"]


def test_deliveries_go_with_their_jobs_time_of_keeping_and_what_waits_is_still_sent(
    timed_store: Database, clock: HandClock
) -> None:
    delivered, waiting = ended(timed_store), ended(timed_store, hook("b.example"))
    claimed = {delivery.job_id: delivery for delivery in due(timed_store)}
    settle(timed_store, claimed[delivered], OK)
    settle(timed_store, claimed[waiting], REFUSED)
    clock.turn(timed_store.settings.retention_seconds + 1)
    sweep(timed_store)
    with timed_store.read() as connection:
        kept = connection.exec_driver_sql("SELECT job_id FROM webhook_deliveries").scalars().all()
        attempts = connection.exec_driver_sql("SELECT count(*) FROM webhook_attempts").scalar()
    assert (kept, attempts) == ([waiting], 1)
    assert settle(timed_store, one(timed_store), OK) is DeliveryState.DELIVERED
    sweep(timed_store)
    with timed_store.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM webhook_deliveries").scalar() == 0


def test_the_event_of_a_job_that_is_deleted_is_sent_all_the_same(timed_store: Database) -> None:
    running = submit(timed_store, webhook=HOOK)
    assert claim(timed_store, "worker", CARD, 1_000) is not None
    delete(timed_store, "default", running)
    claimed = one(timed_store)
    assert json.loads(claimed.body)["type"] == "job.cancelled"
    settle(timed_store, claimed, OK)
    sweep(timed_store)
    with timed_store.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM webhook_deliveries").scalar() == 0


def test_a_call_has_no_webhook_and_its_end_costs_no_statement(store: Database) -> None:
    accept(store, submission(chunks=0, origin=Origin.CALL))
    assert not has_due(store)
