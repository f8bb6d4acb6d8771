"""Work is left for a while to the worker that has its prefix in memory, and then to anybody."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.queue.claims.claim import claim
from jobs.queue.homes import LONGEST_SECONDS, REFRESH_SECONDS, REMEMBERED_SECONDS, Settler
from jobs.queue.read import has_waiting, seconds_until_free
from jobs.queue.worker_registry import register, touch
from jobs.store.database import Database
from jobs.store.records import Claim, Origin, WorkerRecord
from jobs.tenancy.tenants import create_tenant
from scoring.options import Priority
from scoring.work import work_of_prefix
from tests.jobs.conftest import HandClock
from tests.jobs.queue.test_statement_counts import statements_of
from tests.jobs.work import CARD, finish_all, submit

PREFIX = tuple(range(1, 201))
OTHER = tuple(range(2, 202))
WORK = work_of_prefix(len(PREFIX))
PACE = WORK / 2.0  # tokens per second: the prefix takes two seconds

pytestmark = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)


def take(store: Database, worker: str, budget: int = 1_000_000, **given: Any) -> Claim | None:
    """Claim for a worker, which is the home of what it gets, as the scoring loop does."""
    claimed = claim(store, worker, CARD, budget, **given)
    if claimed is not None:
        Settler(store, worker).settle(claimed.shared_prefixes)
    return claimed


@pytest.fixture
def workers(timed_store: Database) -> Database:
    """A store with two workers, one of which is the home of a prefix."""
    for name in ("home", "other"):
        register(timed_store, WorkerRecord(name, CARD, "weights", "none", "float32"))
        touch(timed_store, name, tokens_per_second=PACE)
    submit(timed_store, prefix=PREFIX)
    claimed = take(timed_store, "home")
    assert claimed is not None
    finish_all(timed_store, claimed)
    return timed_store


def test_a_job_is_left_to_the_home_of_its_prefix_for_as_long_as_it_takes_to_compute(
    workers: Database, clock: HandClock
) -> None:
    submit(workers, prefix=PREFIX)
    assert not has_waiting(workers, CARD, "other")
    assert has_waiting(workers, CARD, "home")
    assert take(workers, "other") is None
    assert seconds_until_free(workers, CARD) == pytest.approx(2.0)
    clock.turn(1.9)
    assert take(workers, "other") is None
    clock.turn(0.2)
    assert seconds_until_free(workers, CARD) is None
    assert take(workers, "other") is not None
    submit(workers, prefix=PREFIX)
    assert take(workers, "home") is None, "the other worker is the home now"


def test_the_home_takes_it_at_once(workers: Database) -> None:
    for backlog in (False, True):
        submit(workers, prefix=PREFIX)
        claimed = take(workers, "home", work_left=backlog)
        assert claimed is not None
        finish_all(workers, claimed)


def test_other_work_is_claimed_meanwhile_and_no_flow_is_closed(workers: Database, clock: HandClock) -> None:
    create_tenant(workers, "acme")
    submit(workers, prefix=PREFIX)
    submit(workers, prefix=PREFIX, tenant="acme")
    submit(workers, prefix=OTHER)
    for backlog in (True, False):
        claimed = take(workers, "other", work_left=backlog)
        assert (claimed is None) is not backlog
        if claimed is not None:
            assert {tuple(group.prefix.tolist()) for group in claimed.groups} == {OTHER, PREFIX}
            assert [group.owner.partition(":")[0] for group in claimed.groups if len(group.prefix)] == [
                "acme",
                "default",
            ]
    clock.turn(2.1)
    claimed = take(workers, "other", work_left=True)
    assert claimed is not None
    assert [tuple(group.prefix.tolist()) for group in claimed.groups] == [PREFIX]


@pytest.mark.parametrize(
    "given",
    [{"prefix": OTHER}, {"prefix": (1, 2, 3)}, {"origin": Origin.CALL}, {"tenant": "acme"}],
    ids=["another prefix", "a short one", "a call", "another tenant"],
)
def test_other_jobs_are_left_to_nobody(workers: Database, given: dict[str, Any]) -> None:
    create_tenant(workers, "acme")
    submit(workers, **{"prefix": PREFIX, "priority": Priority.INTERACTIVE} | given)
    assert take(workers, "other") is not None


def test_nothing_is_left_to_a_worker_that_is_gone_or_has_not_been_seen_with_it_for_long(
    workers: Database, clock: HandClock
) -> None:
    clock.turn(workers.settings.worker_fresh_seconds + 1)
    submit(workers, prefix=PREFIX)
    claimed = take(workers, "other")
    assert claimed is not None
    finish_all(workers, claimed)
    clock.turn(REMEMBERED_SECONDS + 1)
    touch(workers, "other", tokens_per_second=PACE)
    submit(workers, prefix=PREFIX)
    assert take(workers, "home") is not None


def test_it_is_left_for_five_seconds_at_most_however_slow_its_home(workers: Database, clock: HandClock) -> None:
    touch(workers, "home", tokens_per_second=WORK / 100.0)
    submit(workers, prefix=PREFIX)
    assert seconds_until_free(workers, CARD) == pytest.approx(LONGEST_SECONDS)


def test_a_worker_writes_once_a_minute_that_it_is_a_home(workers: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("jobs.queue.homes.time.monotonic", lambda: now)
    settler = Settler(workers, "home")
    for seconds, statements in ((0.0, 1), (1.0, 0), (REFRESH_SECONDS, 1)):
        now = 1_000.0 + seconds
        with statements_of(workers) as sent:
            settler.settle([1])
        assert len([one for one in sent if one.startswith("UPDATE prefixes")]) == statements
