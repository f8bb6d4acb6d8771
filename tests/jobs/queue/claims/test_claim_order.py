"""In what order chunks are claimed, and by whom if several workers claim at once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import ExitStack

import pytest
from sqlalchemy import Select, delete, text
from sqlalchemy.event import listen

import jobs.queue.claims.claim_choice
from jobs.queue.claims.claim import claim
from jobs.queue.claims.claim_choice import FEW_CHUNKS
from jobs.queue.lease import release
from jobs.queue.read import get_job, has_waiting
from jobs.store.database import Database
from jobs.store.records import JobStatus
from jobs.store.tables import flows
from scoring.options import Priority
from tests.jobs.conftest import HandClock
from tests.jobs.work import CARD, at_once, finish_all, prefixes_of, somebody_waits, submit, take, waiting_chunks
from tests.services import wait_until


@pytest.mark.parametrize("row_locks", [True, False], ids=["row locks", "no row locks"])
def test_eight_claimants_race_and_every_chunk_goes_to_one(
    store: Database, row_locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without row locks, which only save claims from waiting for each other."""
    if not row_locks:
        monkeypatch.setattr(Select, "with_for_update", lambda self, **_: self)
    for _ in range(4):
        submit(store, chunks=250, row_tokens=1)

    def claim_all(number: int) -> list[int]:
        mine: list[int] = []
        while waiting_chunks(store):
            claimed = claim(store, f"worker {number}", CARD, budget_tokens=40)
            mine += claimed.chunk_ids if claimed else []
        return mine

    claimed_ids = Counter(chunk_id for ids in at_once(8, claim_all) for chunk_id in ids)
    assert len(claimed_ids) == 1_000
    assert set(claimed_ids.values()) == {1}


def test_a_claimant_does_not_wait_for_another(postgres_store: Database) -> None:
    """A claim that is not committed holds its rows, and the next claim skips them."""
    submit(postgres_store, chunks=40)
    with postgres_store.write() as held:
        held.execute(text("SELECT id FROM chunks ORDER BY id LIMIT 10 FOR UPDATE"))
        claimed = take(postgres_store)
        assert len(claimed.chunk_ids) == 30


def test_a_claim_waits_for_no_job(postgres_store: Database) -> None:
    """A transaction that holds a job may wait for chunks that the claim holds, so waiting for it would deadlock."""
    job_id = submit(postgres_store)
    with postgres_store.write() as held:
        held.execute(text("SELECT id FROM jobs FOR UPDATE"))
        claimed = take(postgres_store)
    assert get_job(postgres_store, "default", job_id).status is JobStatus.QUEUED
    finish_all(postgres_store, claimed)
    job = get_job(postgres_store, "default", job_id)
    assert job.status is JobStatus.SUCCEEDED
    assert job.started_at is not None


def test_a_claim_that_is_ended_because_of_a_deadlock_is_no_outage(postgres_store: Database) -> None:
    submit(postgres_store)
    with postgres_store.without_transaction() as tx:  # The claim looks for a deadlock when it has waited for so long.
        name = tx.connection.engine.url.database
        tx.connection.exec_driver_sql(f"ALTER DATABASE {name} SET deadlock_timeout TO '1s'")
    postgres_store.engine.dispose()
    holds = threading.Event()

    def rival() -> None:
        with postgres_store.write() as tx:
            tx.execute(text("SET LOCAL deadlock_timeout TO '60s'"))  # so that the claim is ended
            tx.execute(text("SELECT 1 FROM lanes FOR UPDATE"))
            holds.set()
            wait_until(lambda: somebody_waits(postgres_store), "the claim has locked the chunk, and waits for the flow")
            tx.execute(text("SELECT 1 FROM chunks FOR UPDATE"))

    ended: list[str] = []
    listen(postgres_store.engine, "handle_error", lambda context: ended.append(str(context.original_exception)))
    thread = threading.Thread(target=rival)
    thread.start()
    holds.wait()
    claimed = claim(postgres_store, "worker", CARD, 100)
    thread.join()
    assert {error.partition("\n")[0] for error in ended} == {"deadlock detected"}
    assert len((claimed or take(postgres_store)).chunk_ids) == 1


def test_shuffled_single_item_jobs_are_claimed_as_groups(store: Database) -> None:
    queries = [(1, 1, 1)] * 100 + [(2, 2, 2)] * 100
    random.Random(4).shuffle(queries)
    for query in queries:
        submit(store, prefix=query)
    first, second = take(store, max_chunks=124), take(store, max_chunks=124)
    assert claim(store, "worker", CARD, 100) is None
    # The first claim takes all of the most urgent group and part of the other; the second takes the rest.
    one, other = list(queries[0]), [3 - token for token in queries[0]]
    assert prefixes_of(first) == [one, other]
    assert [len(group.chunks) for group in first.groups] == [100, 24]
    assert prefixes_of(second) == [other]
    assert len(second.chunk_ids) == 76


def test_the_most_urgent_group_comes_first_whole_then_the_next(timed_store: Database, clock: HandClock) -> None:
    submit(timed_store, prefix=(1,), priority=Priority.BULK)
    clock.turn(1)
    submit(timed_store, prefix=(2,))
    clock.turn(1)
    submit(timed_store, prefix=(1,))
    clock.turn(1)
    submit(timed_store, prefix=(3,), priority=Priority.INTERACTIVE)
    # Due at 300, 6, 7 and 3 seconds: (3) is interactive and comes alone; then (2), then all of (1).
    assert prefixes_of(take(timed_store)) == [[3]]
    claimed = take(timed_store)
    assert prefixes_of(claimed) == [[2], [1]]
    assert [len(group.chunks) for group in claimed.groups] == [1, 2]


def test_interactive_work_is_claimed_apart_however_urgent_other_work_is(
    timed_store: Database, clock: HandClock
) -> None:
    submit(timed_store, prefix=(1,), priority=Priority.BULK)
    clock.turn(301)
    for prefix in [(2,), (3,), (2,), (1,)]:
        submit(timed_store, prefix=prefix, priority=Priority.INTERACTIVE)
    submit(timed_store, prefix=(2,), priority=Priority.NORMAL)
    assert has_waiting(timed_store, CARD, interactive_only=True)
    claimed = take(timed_store, max_chunks=3, interactive_only=True)
    assert claimed.interactive
    assert prefixes_of(claimed) == [[2], [3]]
    assert [len(group.chunks) for group in claimed.groups] == [2, 1]
    # The bulk job is the most urgent by now. The interactive chunk of its group is not claimed with it.
    others = take(timed_store)
    assert not others.interactive
    assert prefixes_of(others) == [[1], [2]]
    assert [len(group.chunks) for group in others.groups] == [1, 1]
    last = take(timed_store)
    assert last.interactive
    assert prefixes_of(last) == [[1]]
    assert not has_waiting(timed_store, CARD, interactive_only=True)


def test_a_claim_of_interactive_work_returns_at_once_if_only_other_work_waits(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(store, chunks=3)
    pauses: list[float] = []
    monkeypatch.setattr("jobs.queue.claims.claim.time.sleep", pauses.append)
    assert not has_waiting(store, CARD, interactive_only=True)
    assert claim(store, "worker", CARD, 100, interactive_only=True) is None
    assert pauses == []


def test_released_interactive_work_is_still_interactive(store: Database) -> None:
    submit(store, priority=Priority.INTERACTIVE)
    release(store, take(store).batch_id)
    assert take(store, interactive_only=True).interactive


def test_waiting_work_ages_past_newer_urgent_work(timed_store: Database, clock: HandClock) -> None:
    submit(timed_store, prefix=(1,), priority=Priority.BULK)
    clock.turn(301)
    submit(timed_store, prefix=(2,), priority=Priority.INTERACTIVE)
    assert prefixes_of(take(timed_store, budget=1)) == [[1]]


def test_a_deadline_makes_a_job_due_no_later(timed_store: Database) -> None:
    submit(timed_store, prefix=(1,))
    submit(timed_store, prefix=(2,), priority=Priority.BULK, expires_in=2.0)
    assert prefixes_of(take(timed_store, budget=1)) == [[2]]


def test_work_in_closed_flows_is_claimed_last(store: Database) -> None:
    """As an older version accepts work: no flow is open for it."""
    for tenant in ("one", "two", "three"):
        submit(store, tenant=tenant)
    with store.write() as tx:
        tx.execute(delete(flows).where(flows.c.tenant != "three"))
    claimed = take(store)
    assert [group.owner.partition(":")[0] for group in claimed.groups] == ["three", "one", "two"]
    assert not claimed.work_left


@pytest.mark.parametrize("few", [2, FEW_CHUNKS])
def test_chunks_of_a_group_are_gathered_from_deep_in_the_backlog(
    store: Database, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that reads four chunks at a time finds later chunks by their group."""
    monkeypatch.setattr(jobs.queue.claims.claim_choice, "FEW_CHUNKS", few)
    for prefix in [(1,), (2,), (3,), (4,), (5,), (2,), (1,)]:
        submit(store, prefix=prefix)
    claimed = take(store, max_chunks=4)
    assert prefixes_of(claimed) == [[1], [2]]
    assert [len(group.chunks) for group in claimed.groups] == [2, 2]


def test_a_claim_tries_again_while_others_hold_the_rows(
    postgres_store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim locks more rows than it takes for a moment. Another claim must not take that for an empty backlog."""
    submit(postgres_store, chunks=2)
    with ExitStack() as others:
        tx = others.enter_context(postgres_store.write())
        tx.execute(text("SELECT id FROM chunks FOR UPDATE"))
        # The other transaction ends when the claim pauses before its next try.
        monkeypatch.setattr("jobs.queue.claims.claim.time.sleep", lambda _: others.close())
        assert len(take(postgres_store).chunk_ids) == 2
