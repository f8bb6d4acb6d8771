"""Queries that begin alike are claimed one after another, where that makes nobody wait for longer than a claim."""

from __future__ import annotations

import pytest

import jobs.queue.claims.claim_choice
from jobs.queue.claims.claim_choice import ALIKE_SECONDS, ALIKE_TOKENS
from jobs.store.database import Database
from jobs.store.records import Claim
from scoring.options import Priority
from tests.databases import ON_BOTH
from tests.jobs.conftest import HandClock
from tests.jobs.work import prefixes_of, submit, take


def query(beginning: int, own: int) -> tuple[int, ...]:
    return (beginning,) * ALIKE_TOKENS.stop + (own,)


def names(claimed: Claim) -> list[tuple[int, int]]:
    """Return the first and the last token of each query."""
    return [(prefix[0], prefix[-1]) for prefix in prefixes_of(claimed)]


@ON_BOTH
@pytest.mark.parametrize("few", [2, 128], ids=["long backlog", "short backlog"])
def test_each_claim_begins_with_the_most_urgent_query_and_goes_on_with_those_that_begin_alike(
    store: Database, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.queue.claims.claim_choice, "FEW_CHUNKS", few)
    submit(store, prefix=query(3, 7))
    [cost] = take(store).tokens.values()
    for own in (7, 8, 9, 10):
        for beginning in (1, 2):
            submit(store, prefix=query(beginning, own))
    submit(store, prefix=query(1, 11), tenant="other")
    assert names(take(store, 3 * cost)) == [(1, 7), (1, 8), (1, 9)]
    # The other tenant's turn comes now, whatever its query begins with.
    assert names(take(store, 4 * cost)) == [(1, 11), (2, 7), (2, 8), (2, 9)]
    assert names(take(store)) == [(1, 10), (2, 10)]


def test_work_that_is_due_much_later_is_not_put_before_other_work(timed_store: Database, clock: HandClock) -> None:
    submit(timed_store, prefix=query(1, 7))
    submit(timed_store, prefix=query(2, 7))
    submit(timed_store, prefix=query(1, 8), priority=Priority.BULK)
    clock.turn(ALIKE_SECONDS - 1)
    submit(timed_store, prefix=query(1, 9))
    clock.turn(2)
    submit(timed_store, prefix=query(1, 10))
    assert names(take(timed_store, work_left=True)) == [(1, 7), (1, 9), (2, 7), (1, 10), (1, 8)]


def test_short_queries_and_urgent_work_keep_their_order(store: Database) -> None:
    short = [(1, own) for own in (7, 8)]
    for prefix in (short[0], (2, 7), short[1]):
        submit(store, prefix=prefix)
    assert prefixes_of(take(store)) == [[1, 7], [2, 7], [1, 8]]
    for beginning, own in ((1, 7), (2, 7), (1, 8)):
        submit(store, prefix=query(beginning, own), priority=Priority.INTERACTIVE)
    assert names(take(store)) == [(1, 7), (2, 7), (1, 8)]
