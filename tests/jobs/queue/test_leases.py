"""Work of a worker that is slow, lost, stopping, or fails to score it."""

from __future__ import annotations

import pytest

from jobs.queue.claims.claim import claim
from jobs.queue.finish import finish
from jobs.queue.lease import abandon, release, renew
from jobs.queue.read import get_job, read_scores
from jobs.queue.sweep import sweep
from jobs.store.database import Database
from jobs.store.records import JobStatus, Returned
from scoring.error_codes import ErrorCode
from tests.jobs.conftest import HandClock
from tests.jobs.work import CARD, MODEL, finish_all, score, scored, submit, take


def test_the_work_of_a_silent_worker_goes_to_another_and_the_late_write_is_fenced(
    timed_store: Database, clock: HandClock
) -> None:
    job_id = submit(timed_store, chunks=3)
    late = take(timed_store)
    clock.turn(59)
    assert sweep(timed_store).models == frozenset()
    clock.turn(2)
    assert sweep(timed_store).models == {MODEL}
    second = take(timed_store, max_chunks=1)

    # One chunk is claimed again and one waits; the late worker holds neither.
    assert finish_all(timed_store, late).fenced == 3
    assert get_job(timed_store, "default", job_id).scored_items == 0
    assert len(read_scores(timed_store, "default", job_id, 0, 10).scores) == 0

    finish_all(timed_store, second)
    assert finish_all(timed_store, late).fenced == 3
    finish_all(timed_store, take(timed_store, max_chunks=1))
    assert finish_all(timed_store, take(timed_store)).job_ids == (job_id,)
    job = get_job(timed_store, "default", job_id)
    assert (job.status, job.scored_items) == (JobStatus.SUCCEEDED, 3)


def test_finishing_twice_counts_once(store: Database) -> None:
    job_id = submit(store, chunks=2)
    claimed = take(store)
    first = scored(claimed)[:1]
    assert finish(store, claimed.batch_id, first).fenced == 0
    assert finish(store, claimed.batch_id, first).fenced == 1
    assert get_job(store, "default", job_id).scored_items == 1
    assert finish(store, claimed.batch_id, scored(claimed)).fenced == 1
    assert get_job(store, "default", job_id).status is JobStatus.SUCCEEDED


def test_a_worker_can_not_finish_what_another_holds(store: Database) -> None:
    mine, theirs = submit(store, prefix=(1,)), submit(store, prefix=(2,))
    my_claim, their_claim = take(store, budget=1), take(store, budget=1)
    done = finish(store, my_claim.batch_id, scored(my_claim) + scored(their_claim))
    assert (done.job_ids, done.fenced) == ((mine,), 1)
    assert get_job(store, "default", theirs).status is JobStatus.RUNNING


def test_a_renewed_lease_holds_and_a_lost_one_can_not_be_renewed(timed_store: Database, clock: HandClock) -> None:
    submit(timed_store)
    claimed = take(timed_store)
    for _ in range(4):
        clock.turn(45)
        assert renew(timed_store, claimed.batch_id)
        sweep(timed_store)
    clock.turn(61)
    sweep(timed_store)
    assert not renew(timed_store, claimed.batch_id)
    assert not renew(timed_store, "unheard of")


def test_releasing_a_batch_counts_no_failure(timed_store: Database) -> None:
    job_id = submit(timed_store, chunks=4)
    for _ in range(10):
        claimed = take(timed_store)
        assert len(claimed.chunk_ids) == 4
        assert release(timed_store, claimed.batch_id) == Returned(4, ())
        assert release(timed_store, claimed.batch_id) == Returned(0, ())
    assert finish_all(timed_store, take(timed_store)).job_ids == (job_id,)


def test_releasing_keeps_what_was_finished(store: Database) -> None:
    job_id = submit(store, chunks=3)
    claimed = take(store)
    finish(store, claimed.batch_id, scored(claimed)[:2])
    assert release(store, claimed.batch_id) == Returned(1, ())
    rest = take(store)
    assert len(rest.chunk_ids) == 1
    finish_all(store, rest)
    assert read_scores(store, "default", job_id, 0, 10).indices.tolist() == [0, 1, 2]


@pytest.mark.parametrize("crash", [True, False], ids=["worker crashes", "engine fails"])
def test_a_poison_chunk_is_bisected_until_it_is_alone_and_fails_its_own_job_only(
    timed_store: Database, clock: HandClock, crash: bool
) -> None:
    jobs = [submit(timed_store, prefix=(1, number)) for number in range(16)]
    poison = [1, 11]
    sizes: list[int] = []
    failed: list[str] = []
    while claimed := claim(timed_store, "worker", CARD, 10_000):
        fatal = [group for group in claimed.groups if group.prefix.tolist() == poison]
        if not fatal:
            finish_all(timed_store, claimed)
            continue
        sizes.append(len(claimed.chunk_ids))
        if crash:
            clock.turn(61)
            failed += sweep(timed_store).job_ids
        else:
            failed += abandon(timed_store, claimed.batch_id, "the engine failed").job_ids
    assert sizes == [16, 8, 4, 2, 1, 1, 1]
    assert failed == [jobs[11]]
    outcomes = [get_job(timed_store, "default", job_id) for job_id in jobs]
    assert [job.status is JobStatus.SUCCEEDED for job in outcomes] == [number != 11 for number in range(16)]
    error = outcomes[11].error
    assert error is not None
    assert error.code is ErrorCode.INTERNAL_ERROR
    assert error.message.startswith("given up after 3 attempts: ")


def test_a_failed_job_keeps_what_was_scored_and_takes_its_other_chunks_from_the_queue(timed_store: Database) -> None:
    job_id = submit(timed_store, chunks=5)
    claimed = take(timed_store)
    finish(timed_store, claimed.batch_id, scored(claimed)[:2])
    abandon(timed_store, claimed.batch_id, "broken")
    ended: tuple[str, ...] = ()
    while bad := claim(timed_store, "worker", CARD, 1):
        ended += abandon(timed_store, bad.batch_id, "broken").job_ids
    assert ended == (job_id,)
    assert get_job(timed_store, "default", job_id).status is JobStatus.FAILED
    assert read_scores(timed_store, "default", job_id, 0, 10).indices.tolist() == [0, 1]


def test_a_chunk_that_recovers_in_time_is_not_held_to_its_failures(timed_store: Database) -> None:
    job_id = submit(timed_store)
    for _ in range(2):
        abandon(timed_store, take(timed_store).batch_id, "a bad moment")
    assert finish_all(timed_store, take(timed_store)).job_ids == (job_id,)
    assert get_job(timed_store, "default", job_id).error is None


def test_abandoning_a_lost_batch_does_nothing(timed_store: Database, clock: HandClock) -> None:
    job_id = submit(timed_store)
    for _ in range(2):
        lost = take(timed_store)
        clock.turn(61)
        sweep(timed_store)
        assert abandon(timed_store, lost.batch_id, "too late") == Returned(0, ())
    assert finish_all(timed_store, take(timed_store)).job_ids == (job_id,)


def test_a_batch_finished_in_several_goes_ends_its_job_with_the_last(store: Database) -> None:
    job_id = submit(store, chunks=4)
    claimed = take(store)
    ends = [
        finish(store, claimed.batch_id, [score(chunk)]).job_ids for group in claimed.groups for chunk in group.chunks
    ]
    assert ends == [(), (), (), (job_id,)]
