"""Guarantees under concurrency, with real threads and real databases."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest
from sqlalchemy import String, cast, select, text, update
from sqlalchemy.event import listen

from jobs.invariants import find_violations
from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.queue.ending import cancel, delete
from jobs.queue.finish import finish
from jobs.queue.lease import abandon, release, renew
from jobs.queue.read import get_job, read_scores, statuses
from jobs.queue.removal import remove_prefixes
from jobs.queue.sweep import sweep
from jobs.store.database import Database
from jobs.store.records import Accepted, Idempotency, JobStatus, Origin
from jobs.store.tables import batches, chunks, idempotency_keys, jobs
from scoring.error_codes import RequestError
from scoring.options import Priority
from settings.store import StoreSettings
from tests.databases import quick_on
from tests.jobs.work import CARD, at_once, finish_all, scored, submission, submit, take, waiting_chunks
from tests.services import wait_until

PRIORITIES = list(Priority)


def test_fifty_requests_with_one_key_make_one_job(store: Database) -> None:
    keyed = submission(chunks=3, idempotency=Idempotency("key", "hash"))
    accepted = at_once(50, lambda _: accept(store, keyed))
    assert len({answer.job_id for answer in accepted}) == 1
    assert Counter(answer.replayed for answer in accepted) == {True: 49, False: 1}
    assert waiting_chunks(store) == 3


def test_jobs_submitted_at_once_share_one_prefix(store: Database) -> None:
    at_once(20, lambda _: submit(store))
    with store.read() as tx:
        assert len(set(tx.scalars(select(jobs.c.prefix_id)))) == 1


@quick_on("postgres")
@pytest.mark.parametrize("origin", Origin)
def test_finishing_the_last_two_chunks_at_once_ends_the_job(store: Database, origin: Origin) -> None:
    for _ in range(40):
        job_id = submit(store, chunks=2, origin=origin)
        claims = [take(store, budget=1), take(store, budget=1)]
        ended = at_once(2, lambda number, claims=claims: finish_all(store, claims[number]).job_ids)  # type: ignore[misc]
        assert sorted(ended) == [(), (job_id,)]
        assert get_job(store, "default", job_id).status is JobStatus.SUCCEEDED


@quick_on("postgres")
@pytest.mark.parametrize("durable", [True, False])
def test_finishing_the_same_jobs_in_different_orders_does_not_deadlock(store: Database, durable: bool) -> None:
    """Every batch holds a chunk of every job, so all finishing transactions want the same rows of jobs."""
    for _ in range(5):
        ids = [submit(store, chunks=4) for _ in range(30)]
        work = scored(take(store))
        with store.write() as tx:
            tx.execute(update(chunks).values(batch_id="batch " + cast(chunks.c.first_item, String)))
        shares = [work[number::4][:: (-1) ** number] for number in range(4)]
        finished = at_once(
            4,
            lambda number, shares=shares: finish(store, f"batch {number}", shares[number], durable=durable),  # type: ignore[misc]
        )
        assert [one.fenced for one in finished] == [0] * 4
        assert sorted(job_id for one in finished for job_id in one.job_ids) == sorted(ids)


@quick_on("postgres")
@pytest.mark.parametrize("end", [cancel, delete], ids=["cancel", "delete"])
def test_ending_a_job_against_its_finish_gives_one_outcome_and_no_deadlock(store: Database, end: object) -> None:
    outcomes = Counter[str]()
    for turn in range(40):
        job_id = submit(store, chunks=12, origin=Origin.CALL if turn % 2 else Origin.JOB)
        claimed = take(store)

        def act(number: int, job_id: str = job_id, claimed: object = claimed) -> int | None:
            if number:
                end(store, "default", job_id)  # type: ignore[operator]
                return None
            return finish_all(store, claimed).fenced  # type: ignore[arg-type]

        [fenced] = [answer for answer in at_once(2, act) if answer is not None]
        assert fenced in (0, 12)
        outcomes["finished" if fenced == 0 else "ended"] += 1
        if end is cancel:
            job = get_job(store, "default", job_id)
            assert job.status is (JobStatus.SUCCEEDED if fenced == 0 else JobStatus.CANCELLED)
            assert len(read_scores(store, "default", job_id, 0, 20).scores) == 12 - fenced
        else:
            assert statuses(store, [job_id]) == {}
    assert sum(outcomes.values()) == 40


@quick_on("postgres")
def test_a_prefix_is_not_removed_under_a_job_that_is_just_being_accepted(store: Database) -> None:
    """Submit and delete the same query in many threads, and sweep for unused prefixes all the while."""
    churning = threading.Barrier(4, action=(stop := threading.Event()).set)

    def churn(number: int) -> None:
        if number == 0:
            while not stop.is_set():
                remove_prefixes(store)
            return
        try:
            for _ in range(30):
                delete(store, "default", submit(store))
        finally:
            churning.wait(60)

    at_once(5, churn)
    while remove_prefixes(store):
        pass
    with store.read() as tx:
        assert tx.execute(text("SELECT count(*) FROM prefixes")).scalar_one() == 0
    job_id = submit(store)
    assert finish_all(store, take(store)).job_ids == (job_id,)


@quick_on("postgres")
def test_nothing_is_lost_doubled_or_deadlocked_when_everything_happens_at_once(store_url: str) -> None:
    """Submit, claim, finish in parts, renew, release, abandon, vanish, cancel, delete and sweep, all against all."""
    settings = StoreSettings(database_url=store_url, lease_seconds=0.15, max_attempts=10_000)
    store = Database.open(settings)
    submitted: dict[str, int] = {}
    deleted: set[str] = set()
    ends = Counter[str]()
    submitting = threading.Event()
    deadline = time.monotonic() + 60

    def submitter(chance: random.Random) -> None:
        for _ in range(60):
            count = chance.choice([1, 1, 1, 2, 7, 25])
            prefix, priority, origin = (chance.randrange(4),), chance.choice(PRIORITIES), chance.choice(list(Origin))
            job_id = submit(store, chunks=count, prefix=prefix, priority=priority, origin=origin)
            submitted[job_id] = count

    def worker(chance: random.Random) -> None:
        while not submitting.is_set() or waiting_chunks(store) or unfinished():
            assert time.monotonic() < deadline, "the backlog does not drain"
            claimed = claim(store, "worker", CARD, chance.choice([1, 60, 500]))
            if claimed is None:
                time.sleep(0.005)
                continue
            work = scored(claimed)
            chance.shuffle(work)
            half = len(work) // 2
            fate = chance.random()
            if fate < 0.1:
                continue  # lost: the sweep has to find it
            ends.update(finish(store, claimed.batch_id, work[:half], durable=claimed.durable).job_ids)
            if fate < 0.2:
                release(store, claimed.batch_id)
            elif fate < 0.3:
                assert not abandon(store, claimed.batch_id, "a bad moment").job_ids
            elif fate < 0.4:
                wait_until(partial(lost, claimed.batch_id), "the lease is lost", 10)
                ends.update(finish(store, claimed.batch_id, work[half:], durable=claimed.durable).job_ids)
            else:
                renew(store, claimed.batch_id)
                ends.update(finish(store, claimed.batch_id, work[half:], durable=claimed.durable).job_ids)

    def ender(chance: random.Random) -> None:
        while not submitting.is_set():
            known = list(submitted)
            if known:
                job_id = chance.choice(known)
                end = chance.choice([cancel, delete])
                if end is delete:
                    deleted.add(job_id)
                with suppress(RequestError):  # it may be deleted already
                    end(store, "default", job_id)
            time.sleep(0.02)

    def sweeper(chance: random.Random) -> None:
        while not submitting.is_set() or unfinished():
            assert time.monotonic() < deadline, "jobs do not end"
            sweep(store)
            assert find_violations(store, full=chance.random() < 0.5) == []
            time.sleep(chance.random() * 0.05)

    def lost(batch_id: str) -> bool:
        with store.read() as tx:
            return tx.execute(select(batches).where(batches.c.id == batch_id)).first() is None

    def unfinished() -> bool:
        with store.read() as tx:
            return tx.execute(select(jobs.c.id).where(jobs.c.finished_at.is_(None)).limit(1)).first() is not None

    roles = [submitter, submitter, submitter, worker, worker, worker, worker, ender, sweeper, sweeper]
    still_submitting = threading.Barrier(3, action=submitting.set)

    def play(number: int) -> None:
        try:
            roles[number](random.Random(number))
        finally:
            if roles[number] is submitter:
                still_submitting.wait(60)

    at_once(len(roles), play)
    assert len(submitted) == 180
    assert set(ends.values()) <= {1}, "a job succeeded twice"
    for job_id, count in submitted.items():
        if job_id in deleted:
            with pytest.raises(RequestError):
                get_job(store, "default", job_id)
            continue
        job = get_job(store, "default", job_id)
        page = read_scores(store, "default", job_id, 0, 100)
        assert job.scored_items == len(page.scores)
        assert page.scores.logits[:, 0].tolist() == page.indices.tolist()
        assert job.status in (JobStatus.SUCCEEDED, JobStatus.CANCELLED)
        assert (job.status is JobStatus.SUCCEEDED) == (job.scored_items == count) == (job_id in ends)
    with store.read() as tx:
        left = set(tx.scalars(select(chunks.c.state).distinct()))
    assert left <= {"done", "dropped"}
    store.close()


def test_a_key_that_a_new_job_takes_while_its_old_job_is_removed_stays_with_the_new_job(
    postgres_store: Database,
) -> None:
    old = submit(postgres_store, idempotency=Idempotency("key", "old"))
    with postgres_store.write() as tx:
        tx.execute(update(jobs).where(jobs.c.id == old).values(remove_at=0.0))
    waiting = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    removing = threading.Thread(target=sweep, args=(postgres_store,))

    def somebody_waits() -> bool:
        with postgres_store.read() as tx:
            return tx.scalar(waiting) is not None

    def remove_the_old_job(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "INSERT INTO jobs" in statement and removing.ident is None:  # The new job has the key, and is not committed.
            removing.start()
            wait_until(somebody_waits, "the removal waits for the key")

    listen(postgres_store.engine, "before_cursor_execute", remove_the_old_job)
    new = submission(idempotency=Idempotency("key", "new"))
    job_id = accept(postgres_store, new).job_id
    removing.join()
    assert accept(postgres_store, new) == Accepted(job_id, replayed=True)
    with postgres_store.read() as tx:
        assert tx.scalars(select(idempotency_keys.c.job_id)).all() == [job_id]
        assert tx.scalars(select(jobs.c.id)).all() == [job_id]
