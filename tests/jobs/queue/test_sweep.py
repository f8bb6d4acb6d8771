"""Sweeps: expiry, retention, lost batches, and the registry of workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Table, func, insert, select

from checkpoints.card import ModelCard
from jobs.invariant_watch import Watch
from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.queue.ending import cancel
from jobs.queue.read import get_job, list_jobs, read_scores
from jobs.queue.removal import CHUNKS_PER_STEP, JOBS_PER_STEP
from jobs.queue.sweep import sweep
from jobs.queue.worker_registry import live_workers, register, touch, unregister
from jobs.store.database import Database
from jobs.store.records import Idempotency, JobStatus, Origin, Swept, WorkerRecord
from jobs.store.tables import batches, chunks, idempotency_keys, jobs, prefixes, workers
from scoring.error_codes import RequestError
from tests.databases import quick_on
from tests.jobs.conftest import HandClock
from tests.jobs.work import CARD, MODEL, at_once, finish_all, keyed, submission, submit, take, waiting_chunks
from tests.workers.conftest import RecordingBell
from workers.sweeping import sweep_once

DAY = 86_400.0


def count(store: Database, table: Table) -> Any:
    with store.read() as tx:
        return tx.scalar(select(func.count()).select_from(table))


def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a sweep work on six rows of a kind at most, in two steps."""
    monkeypatch.setattr("jobs.store.free_rows.ROWS_PER_STEP", 3)
    monkeypatch.setattr("jobs.queue.sweep.STEPS", 2)


def test_a_job_past_its_deadline_expires_with_its_scores_kept(timed_store: Database, clock: HandClock) -> None:
    job_id = submit(timed_store, chunks=2, expires_in=10.0)
    finish_all(timed_store, take(timed_store, budget=1))
    clock.turn(9.9)
    assert sweep(timed_store).job_ids == ()
    clock.turn(0.1)
    assert sweep(timed_store).job_ids == (job_id,)
    assert sweep(timed_store).job_ids == ()
    assert get_job(timed_store, "default", job_id).status is JobStatus.EXPIRED
    assert claim(timed_store, "worker", CARD, 100) is None
    assert read_scores(timed_store, "default", job_id, 0, 10).indices.tolist() == [0]


def test_a_job_that_ended_before_its_deadline_does_not_expire(timed_store: Database, clock: HandClock) -> None:
    job_id = submit(timed_store, expires_in=10.0)
    finish_all(timed_store, take(timed_store))
    clock.turn(11)
    assert sweep(timed_store).job_ids == ()
    assert get_job(timed_store, "default", job_id).status is JobStatus.SUCCEEDED


def test_jobs_are_kept_for_days_and_calls_for_minutes(timed_store: Database, clock: HandClock) -> None:
    job_id, call_id = submit(timed_store), submit(timed_store, origin=Origin.CALL)
    finish_all(timed_store, take(timed_store))
    waiting = submit(timed_store)
    clock.turn(900)
    with pytest.raises(RequestError):
        get_job(timed_store, "default", call_id)
    assert sweep(timed_store).removed == 1
    clock.turn(7 * DAY - 901)
    assert sweep(timed_store).removed == 0
    assert get_job(timed_store, "default", job_id).status is JobStatus.SUCCEEDED
    clock.turn(1)
    assert [job.id for job in list_jobs(timed_store, "default")] == [waiting]
    assert sweep(timed_store).removed == 1
    assert (count(timed_store, jobs), count(timed_store, chunks), count(timed_store, prefixes)) == (1, 1, 1)


@quick_on("sqlite")
def test_more_rows_than_one_step_removes_are_removed_in_several_steps(timed_store: Database, clock: HandClock) -> None:
    submit(timed_store, chunks=2 * CHUNKS_PER_STEP + 1, row_tokens=1)
    for _ in range(JOBS_PER_STEP + 1):
        submit(timed_store, chunks=0)
    while claimed := claim(timed_store, "worker", CARD, 10_000_000):
        finish_all(timed_store, claimed)
    clock.turn(7 * DAY)
    assert sweep(timed_store) == Swept((), frozenset(), JOBS_PER_STEP + 2)
    assert [count(timed_store, table) for table in (jobs, chunks, prefixes, batches)] == [0, 0, 0, 0]


def test_a_prefix_goes_with_the_last_job_that_uses_it(timed_store: Database, clock: HandClock) -> None:
    submit(timed_store, chunks=0)
    clock.turn(DAY)
    submit(timed_store, chunks=0)
    clock.turn(6 * DAY)
    assert sweep(timed_store).removed == 1
    assert count(timed_store, prefixes) == 1
    clock.turn(DAY)
    assert sweep(timed_store).removed == 1
    assert count(timed_store, prefixes) == 0


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.CANCELLED])
def test_a_call_with_an_idempotency_key_is_kept_for_as_long_as_its_key(
    timed_store: Database, clock: HandClock, status: JobStatus
) -> None:
    keyed = submission(origin=Origin.CALL, idempotency=Idempotency("key", "hash"))
    job_id = accept(timed_store, keyed).job_id
    other = accept(timed_store, submission(origin=Origin.CALL)).job_id
    clock.turn(100)
    if status is JobStatus.SUCCEEDED:
        finish_all(timed_store, take(timed_store))
    else:
        cancel(timed_store, "default", job_id)
        cancel(timed_store, "default", other)
    clock.turn(DAY - 101)
    assert sweep(timed_store).removed == 1, "the call without a key"
    again = accept(timed_store, keyed)
    assert (again.job_id, again.replayed) == (job_id, True)
    assert get_job(timed_store, "default", job_id).status is status
    clock.turn(1)
    assert sweep(timed_store).removed == 1
    assert (count(timed_store, idempotency_keys), count(timed_store, jobs)) == (0, 0)
    assert not accept(timed_store, keyed).replayed


def test_a_call_that_ends_after_its_key_has_expired_is_kept_for_minutes(
    timed_store: Database, clock: HandClock
) -> None:
    accept(timed_store, submission(origin=Origin.CALL, idempotency=Idempotency("key", "hash")))
    clock.turn(DAY + 1)
    finish_all(timed_store, take(timed_store))
    clock.turn(899)
    assert sweep(timed_store).removed == 0
    clock.turn(1)
    assert sweep(timed_store).removed == 1


def test_idempotency_keys_are_removed_before_their_jobs(timed_store: Database, clock: HandClock) -> None:
    accept(timed_store, submission(idempotency=Idempotency("key", "hash")))
    clock.turn(DAY)
    sweep(timed_store)
    assert (count(timed_store, idempotency_keys), count(timed_store, jobs)) == (0, 1)


def test_batches_without_unfinished_chunks_are_removed(timed_store: Database, clock: HandClock) -> None:
    submit(timed_store)
    finish_all(timed_store, take(timed_store))
    sweep(timed_store)
    assert count(timed_store, batches) == 1
    clock.turn(61)
    assert sweep(timed_store).models == frozenset()
    assert count(timed_store, batches) == 0


def test_a_lost_batch_is_returned_by_one_sweep_although_thousands_of_older_rows_hold_no_work(
    timed_store: Database, clock: HandClock
) -> None:
    submit(timed_store)
    take(timed_store)
    old = [{"id": f"spent-{n}", "worker_id": "worker", "lease_until": clock.now - 1_000} for n in range(7_000)]
    with timed_store.write() as tx:
        tx.execute(insert(batches), old)
    clock.turn(61)
    assert sweep(timed_store).models == {MODEL}
    assert waiting_chunks(timed_store) == 1
    assert count(timed_store, batches) == 0


def test_one_sweep_removes_a_bounded_number_of_batches_that_hold_no_work(
    timed_store: Database, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_at_a_time(monkeypatch)
    with timed_store.write() as tx:
        rows = [{"id": f"spent-{n}", "worker_id": "worker", "lease_until": clock.now - 1} for n in range(8)]
        tx.execute(insert(batches), rows)
    sweep(timed_store)
    assert count(timed_store, batches) == 2
    sweep(timed_store)
    assert count(timed_store, batches) == 0


def test_a_sweep_says_whether_more_jobs_may_be_past_their_deadline(
    timed_store: Database, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_at_a_time(monkeypatch)
    late = [submit(timed_store, expires_in=10.0) for _ in range(20)]
    clock.turn(10)
    first = sweep(timed_store)
    assert (len(first.job_ids), first.more) == (6, True)
    bell = RecordingBell()
    watch = Watch(timed_store)
    assert sweep_once(timed_store, bell, watch)
    while sweep_once(timed_store, bell, watch):
        pass
    assert sorted([*first.job_ids, *bell.ended]) == sorted(late)
    assert watch.violations == ()
    assert not sweep(timed_store).more


def test_more_expired_keys_than_one_step_removes_are_removed_by_one_sweep(
    timed_store: Database, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_at_a_time(monkeypatch)
    for number in range(5):
        accept(timed_store, keyed(str(number)))
    clock.turn(DAY)
    sweep(timed_store)
    assert count(timed_store, idempotency_keys) == 0


@quick_on("postgres")
def test_sweeps_at_once_return_each_batch_once(timed_store: Database, clock: HandClock) -> None:
    ids = [submit(timed_store, prefix=(number,)) for number in range(24)]
    for _ in range(2):
        while take_one := claim(timed_store, "worker", CARD, 1):
            assert len(take_one.chunk_ids) == 1
        clock.turn(61)
        at_once(4, lambda _: sweep(timed_store))
    # Each batch was lost twice. If a loss were counted twice, every job would have failed by now.
    assert {get_job(timed_store, "default", job_id).status for job_id in ids} == {JobStatus.RUNNING}
    while claim(timed_store, "worker", CARD, 1):
        pass
    clock.turn(61)
    swept = at_once(4, lambda _: sweep(timed_store))
    assert sorted(job_id for one in swept for job_id in one.job_ids) == sorted(ids)


def test_workers_register_are_seen_and_are_removed(timed_store: Database, clock: HandClock) -> None:
    started = clock.now
    card = ModelCard("tiny", 4_096, 1_000, "f" * 64, delimiter=0)
    worker = WorkerRecord("host-1", card, "w" * 64, "cpu", "bfloat16")
    assert not touch(timed_store, "host-1")
    register(timed_store, worker)
    register(timed_store, WorkerRecord("host-2", ModelCard("tiny", 1, 2, "f"), "w", "cpu", "float32"))
    clock.turn(15)
    assert touch(timed_store, "host-1")
    clock.turn(15)
    [live] = live_workers(timed_store, 20.0)
    assert live == WorkerRecord("host-1", card, "w" * 64, "cpu", "bfloat16", started, started + 15)
    assert touch(timed_store, "host-1", 12.5)
    assert touch(timed_store, "host-1"), "which says nothing new of its pace"
    assert live_workers(timed_store, 20.0)[0].tokens_per_second == 12.5
    planning = {"planner": {"policy": {"algorithm": "auto"}}, "claim_seconds": 4.0}
    register(timed_store, replace(worker, planning=planning))
    assert touch(timed_store, "host-1", 12.5, 0.75)
    [live] = live_workers(timed_store, 20.0)
    assert (live.planning, live.estimate_ratio) == (planning, 0.75)
    register(timed_store, worker)
    assert live_workers(timed_store, 20.0)[0].started_at == started + 30
    unregister(timed_store, "host-1")
    assert live_workers(timed_store, 20.0) == []
    clock.turn(600)
    sweep(timed_store)
    assert count(timed_store, workers) == 0
    assert not touch(timed_store, "host-2")
