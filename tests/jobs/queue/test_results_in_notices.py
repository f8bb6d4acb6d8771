"""Which results a finish hands out to be sent with the notice, and reading the results of many jobs at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.event import listen, remove

from jobs.queue.ending import cancel, delete
from jobs.queue.finish import finish
from jobs.queue.lease import release
from jobs.queue.read import get_job, read_scores, results_of
from jobs.store.database import Database
from jobs.store.identifiers import new_notice_key
from jobs.store.records import JobStatus, Origin
from jobs.store.signed_result import MAX_RESULT_BYTES, verified_result
from scoring.layout import Head
from scoring.options import ScoreOptions
from tests.jobs.work import LABELS, finish_all, scored, submit, take

KEY = new_notice_key()


def call(store: Database, **given: Any) -> str:
    return submit(store, origin=Origin.CALL, notice_key=KEY, **given)


@contextmanager
def statements(store: Database) -> Iterator[list[str]]:
    """Record the statements that are sent meanwhile."""
    sent: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    listen(store.engine, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        remove(store.engine, "before_cursor_execute", record)


@pytest.mark.parametrize("softmax", [False, True])
def test_the_result_of_a_call_is_what_reading_gives_bit_for_bit(store: Database, softmax: bool) -> None:
    options = ScoreOptions(apply_softmax=softmax)
    job_id = call(store, chunks=3, rows=2, options=options)
    finished = finish_all(store, take(store))
    assert finished.job_ids == (job_id,)
    found = verified_result(finished.results[job_id], KEY, items=6, labels=len(LABELS), head=options.head)
    assert found is not None
    page = read_scores(store, "default", job_id, 0, 100)
    assert found.finished_at == page.job.finished_at
    assert found.cached_tokens == page.job.cached_tokens == 6
    assert found.scores.logits.tobytes() == page.scores.logits.tobytes()
    assert found.scores.logprobs is not None
    assert page.scores.logprobs is not None
    assert found.scores.logprobs.tobytes() == page.scores.logprobs.tobytes()


def test_each_of_many_calls_in_one_finish_gets_its_own_result(store: Database) -> None:
    keys = [new_notice_key() for _ in range(5)]
    job_ids = [submit(store, notice_key=key, rows=n + 1) for n, key in enumerate(keys)]
    results = finish_all(store, take(store)).results
    assert sorted(results) == sorted(job_ids)
    for n, (job_id, key) in enumerate(zip(job_ids, keys, strict=True)):
        for other in keys:
            found = verified_result(results[job_id], other, items=n + 1, labels=2, head=Head.LOGPROBS)
            assert (found is not None) == (other == key)


def test_a_job_without_a_key_gives_no_result(store: Database) -> None:
    job_id = submit(store)
    finished = finish_all(store, take(store))
    assert (finished.job_ids, finished.results) == ((job_id,), {})


def test_a_large_result_is_not_handed_out(store: Database) -> None:
    job_id = call(store, rows=MAX_RESULT_BYTES // 16 + 1)
    finished = finish_all(store, take(store))
    assert (finished.job_ids, finished.results) == ((job_id,), {})


def test_a_call_that_is_finished_in_parts_gives_no_result(store: Database) -> None:
    job_id = call(store, chunks=2)
    claimed = take(store)
    first, second = scored(claimed)
    assert finish(store, claimed.batch_id, [first]).job_ids == ()
    finished = finish(store, claimed.batch_id, [second])
    assert (finished.job_ids, finished.results) == ((job_id,), {})


def test_a_batch_that_comes_too_late_hands_out_nothing(store: Database) -> None:
    job_id = call(store)
    late = take(store)
    release(store, late.batch_id)
    assert finish_all(store, late).results == {}
    in_time = take(store)
    assert finish_all(store, late).results == {}
    assert list(finish_all(store, in_time).results) == [job_id]
    assert finish_all(store, late).results == {}
    assert finish_all(store, in_time).results == {}


def test_a_cancelled_call_gives_no_result(store: Database) -> None:
    job_id = call(store)
    claimed = take(store)
    cancel(store, "default", job_id)
    finished = finish_all(store, claimed)
    assert (finished.job_ids, finished.results) == ((), {})


def test_the_key_needs_no_further_statement(store: Database) -> None:
    submit(store)
    claimed = take(store)
    with statements(store) as without:
        finish_all(store, claimed)
    call(store)
    claimed = take(store)
    with statements(store) as with_key:
        assert finish_all(store, claimed).results
    assert len(with_key) == len(without)


def test_the_results_of_many_jobs_are_read_by_one_statement(store: Database) -> None:
    ended = [submit(store, chunks=2, rows=2, prefix=(1, n)) for n in range(10)]
    empty = submit(store, chunks=0)
    finish_all(store, take(store))
    cancelled, waiting, deleted = submit(store), submit(store), submit(store)
    cancel(store, "default", cancelled)
    delete(store, "default", deleted)
    foreign = submit(store, tenant="acme")
    asked = [*ended, empty, cancelled, waiting, deleted, foreign, "job_unknown"]
    with statements(store) as sent:
        found = results_of(store, asked)
    assert len([statement for statement in sent if statement.startswith("SELECT")]) == 1
    assert set(found) == set(asked) - {deleted, "job_unknown"}
    for job_id in [*ended, empty]:
        page = read_scores(store, "default", job_id, 0, 100)
        job, read = found[job_id]
        assert job == page.job
        assert read is not None
        assert (read.indices.tolist(), read.has_more) == (page.indices.tolist(), False)
        assert read.scores.logits.tobytes() == page.scores.logits.tobytes()
    for job_id, status in ((cancelled, JobStatus.CANCELLED), (waiting, JobStatus.QUEUED)):
        assert found[job_id] == (get_job(store, "default", job_id), None)
        assert found[job_id][0].status is status
    assert found[foreign][0].tenant == "acme"
