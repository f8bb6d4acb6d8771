"""Endpoints are disabled when they respond with gone or fail for days, and are forgotten in time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import insert, select, text

from jobs.queue.sweep import sweep
from jobs.store.database import Database, Transaction
from jobs.webhooks.deliveries import JITTER, MAX_RETRY_AFTER_SECONDS, Attempt, RetryPolicy, record_attempt
from jobs.webhooks.endpoints import (
    FORGET_DISABLED_SECONDS,
    FORGETTABLE,
    find_endpoint,
    hash_url,
    record_failure,
    record_success,
)
from jobs.webhooks.tables import DeliveryState, webhook_endpoints
from tests.databases import ON_BOTH
from tests.jobs.conftest import HandClock
from tests.jobs.interleaving import once_after
from tests.jobs.sending import (
    DAYS,
    HOOK,
    OK,
    REFUSED,
    RETRY_POLICY,
    RETRY_SECONDS,
    URL,
    due,
    ended,
    hook,
    of,
    one,
    settle,
)
from tests.jobs.work import submit
from tests.services import wait_until

SHORT = RetryPolicy(RETRY_SECONDS, 2 * DAYS)
NOW = 1e9


def test_an_endpoint_that_responds_with_gone_is_disabled(timed_store: Database, clock: HandClock) -> None:
    first, second = ended(timed_store), ended(timed_store)
    other = ended(timed_store, hook("other.example"))
    claimed = {delivery.job_id: delivery for delivery in due(timed_store, per_host=1)}
    assert claimed.keys() == {first, other}
    settled = record_attempt(timed_store, claimed[first], Attempt("status", 0.1, status=410), RETRY_POLICY)
    assert settled is not None
    assert (settled.state, settled.endpoint_disabled) == (DeliveryState.FAILED, True)
    later = ended(timed_store)
    assert due(timed_store) == [], "what waits for it is skipped"
    assert [of(timed_store, job_id).state for job_id in (first, second, later)] == ["failed", "skipped", "skipped"]
    endpoint = of(timed_store, later).endpoint
    assert endpoint is not None
    assert endpoint.disabled_at == clock.now
    assert settle(timed_store, claimed[other], OK) is DeliveryState.DELIVERED


def test_the_same_url_of_another_tenant_stays_enabled(timed_store: Database) -> None:
    ended(timed_store)
    settle(timed_store, one(timed_store), Attempt("status", 0.1, status=410))
    submit(timed_store, chunks=0, webhook=HOOK, tenant="another")
    assert one(timed_store).tenant == "another"


@ON_BOTH
def test_an_endpoint_that_fails_for_days_is_disabled_and_one_success_between_is_enough(
    timed_store: Database, clock: HandClock
) -> None:
    def fails() -> bool:
        ended(timed_store)
        settled = record_attempt(timed_store, due(timed_store)[0], REFUSED, SHORT)
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


@ON_BOTH
@pytest.mark.parametrize("swept", [False, True])
def test_failures_far_apart_do_not_disable_an_endpoint(timed_store: Database, clock: HandClock, swept: bool) -> None:
    for _ in range(4):
        ended(timed_store, HOOK)
        (claimed, *_) = due(timed_store)
        settled = record_attempt(timed_store, claimed, Attempt("status", 0.1, status=500), SHORT)
        assert settled is not None
        assert not settled.endpoint_disabled
        with timed_store.write() as connection:
            connection.execute(text("DELETE FROM webhook_deliveries"))
        clock.turn(2.5 * DAYS)
        if swept:
            sweep(timed_store)
            with timed_store.read() as connection:
                assert connection.execute(text("SELECT count(*) FROM webhook_endpoints")).scalar() == 0


@pytest.mark.parametrize("retry_seconds", [RETRY_SECONDS, (60.0,) * 7])
def test_an_endpoint_that_asks_for_the_longest_pause_is_still_disabled(
    timed_store: Database, clock: HandClock, retry_seconds: Sequence[float]
) -> None:
    policy = RetryPolicy(retry_seconds, 5 * DAYS)
    busy = Attempt("status", 0.1, status=503, retry_after=MAX_RETRY_AFTER_SECONDS)
    job_id = ended(timed_store)
    for day in range(6):
        settled = record_attempt(timed_store, one(timed_store), busy, policy)
        assert settled is not None
        assert settled.endpoint_disabled == (day == 5)
        clock.turn(DAYS + 600)
        sweep(timed_store)
    assert of(timed_store, job_id).state is DeliveryState.FAILED


def test_failures_are_not_forgotten_during_a_pause_of_more_than_a_day(timed_store: Database, clock: HandClock) -> None:
    weekly = RetryPolicy((7 * DAYS,) * 3, 5 * DAYS)
    ended(timed_store)
    record_attempt(timed_store, one(timed_store), REFUSED, weekly)
    clock.turn(7 * DAYS * (1 + JITTER))
    sweep(timed_store)
    settled = record_attempt(timed_store, one(timed_store), REFUSED, weekly)
    assert settled is not None
    assert settled.endpoint_disabled


def test_a_disabled_endpoint_to_which_nothing_was_sent_for_long_is_tried_again(
    timed_store: Database, clock: HandClock
) -> None:
    ended(timed_store)
    settle(timed_store, one(timed_store), Attempt("status", 0.1, status=410))
    clock.turn(FORGET_DISABLED_SECONDS - 1)
    sweep(timed_store)
    ended(timed_store)
    assert due(timed_store) == []
    clock.turn(2)
    sweep(timed_store)
    job_id = ended(timed_store)
    assert one(timed_store).job_id == job_id


def note(tx: Transaction, *, gone: bool) -> tuple[bool, bool]:
    return record_failure(tx, "default", URL, NOW, gone=gone, disable_seconds=DAYS, max_pause_seconds=DAYS)


def fail(store: Database, *, gone: bool) -> tuple[bool, bool]:
    with store.write() as connection:
        return note(connection, gone=gone)


def somebody_waits(store: Database) -> bool:
    """Whether a transaction waits for another."""
    waiting = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    with store.read() as connection:
        return connection.scalar(waiting) is not None


@pytest.mark.parametrize("gone", [False, True])
def test_one_of_two_simultaneous_failures_disables_the_endpoint(postgres_store: Database, gone: bool) -> None:
    """The first that an endpoint has: there is no row yet for the second to wait for."""
    with ThreadPoolExecutor(1) as pool:
        with postgres_store.write() as connection:
            assert note(connection, gone=True) == (True, True)
            second = pool.submit(fail, postgres_store, gone=gone)
            wait_until(lambda: somebody_waits(postgres_store), "the other failure waits")
        assert second.result() == (True, False)
    endpoint = find_endpoint(postgres_store, "default", URL)
    assert endpoint is not None
    assert endpoint.disabled_at == NOW


def test_a_failure_does_not_undo_a_simultaneous_disabling(postgres_store: Database) -> None:
    """Of an endpoint that failed before: its row is there for both to read."""
    disabling: list[Future[tuple[bool, bool]]] = []

    def disable() -> None:
        disabling.append(pool.submit(fail, postgres_store, gone=True))
        wait_until(
            lambda: disabling[0].done() or somebody_waits(postgres_store), "the other failure waits, or is noted"
        )

    fail(postgres_store, gone=False)
    with ThreadPoolExecutor(1) as pool:
        once_after(postgres_store, "INSERT INTO webhook_endpoints ", disable)
        fail(postgres_store, gone=False)
        assert disabling[0].result() == (True, True)
    endpoint = find_endpoint(postgres_store, "default", URL)
    assert endpoint is not None
    assert endpoint.disabled_at == NOW


def test_a_success_beside_a_failure_resets_the_endpoint(postgres_store: Database) -> None:
    with postgres_store.write() as connection:
        row = {"tenant": "default", "url_sha256": hash_url(URL), "failing_since": NOW - 2 * DAYS, "forget_at": NOW + 1}
        connection.execute(insert(webhook_endpoints).values(row))
    with ThreadPoolExecutor(1) as pool:
        with postgres_store.write() as connection:
            record_success(connection, "default", URL)
            failing = pool.submit(fail, postgres_store, gone=False)
            wait_until(lambda: somebody_waits(postgres_store), "the failure waits for the success")
        assert failing.result() == (False, False)
    endpoint = find_endpoint(postgres_store, "default", URL)
    assert endpoint is not None
    assert endpoint.failing_since == NOW


def test_forgettable_endpoints_are_found_by_an_index(postgres_store: Database) -> None:
    with postgres_store.write() as connection:
        connection.execute(text("SET LOCAL enable_seqscan TO off"))
        compiled = select(webhook_endpoints).where(FORGETTABLE).compile(postgres_store.engine)
        plan = connection.execute(text(f"EXPLAIN {compiled}")).scalars().all()
    assert any("Index Cond" in line for line in plan), plan
