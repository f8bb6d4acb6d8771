"""Uploads: invisible to workers until they are accepted, then jobs like any other; aborted uploads leave nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select, update

from jobs.queue import upload as uploads
from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.queue.ending import cancel, delete
from jobs.queue.read import get_job, list_jobs, read_scores
from jobs.queue.statistics import has_more_than
from jobs.queue.sweep import sweep
from jobs.queue.upload import (
    EarlierUpload,
    Upload,
    abort_upload,
    accept_upload,
    begin_upload,
    release_chunks,
    remove_upload,
    stage,
)
from jobs.store.database import Database
from jobs.store.records import Idempotency, JobStatus, Submission
from jobs.store.tables import chunks, flows, idempotency_keys, jobs
from scoring.error_codes import ErrorCode, RequestError
from scoring.options import Priority
from tests.jobs.conftest import HandClock
from tests.jobs.work import CARD, MODEL, at_once, finish_all, submission, submit, take, waiting_chunks

TIMEOUT = 60.0
DAY = 86_400.0


def begin(store: Database, key: str | None = None, **given: Any) -> Upload:
    begun = begin_upload(store, submission(chunks=0, **given), key)
    assert isinstance(begun, Upload)
    return begun


def parts(count: int, rows: int = 1, first: int = 0) -> Submission:
    """Return a submission of consecutive chunks, beginning at index ``first`` of the job."""
    whole = submission(chunks=first + count, rows=rows)
    return replace(
        whole,
        chunks=whole.chunks[first:],
        total_items=count * rows,
        prompt_tokens=sum(int(part.rows.sequence_lengths.sum()) for part in whole.chunks[first:]),
    )


def status(store: Database, job_id: str) -> JobStatus:
    return get_job(store, "default", job_id).status


def count(store: Database, table: Any) -> Any:
    with store.read() as tx:
        return tx.scalar(select(func.count()).select_from(table))


def code(action: Any) -> ErrorCode:
    with pytest.raises(RequestError) as refused:
        action()
    return refused.value.code


def test_a_staged_job_equals_the_same_job_accepted_at_once(store: Database) -> None:
    at_one_go = submit(store, chunks=5, rows=2)
    begun = begin(store)
    for first, size in ((0, 2), (2, 1), (3, 2)):
        stage(store, begun, parts(size, 2, first).chunks)
    accept_upload(store, begun, "hash")
    while claimed := claim(store, "worker", CARD, 40):
        finish_all(store, claimed)
    pages = [read_scores(store, "default", job_id, 0, 100) for job_id in (at_one_go, begun.job_id)]
    one, staged = (page.job for page in pages)
    assert pages[0].scores.logits.tolist() == pages[1].scores.logits.tolist()
    assert pages[1].indices.tolist() == list(range(10))
    different = {"id", "created_at", "started_at", "finished_at"}
    assert {name: value for name, value in _fields(one).items() if name not in different} == {
        name: value for name, value in _fields(staged).items() if name not in different
    }
    with store.read() as tx:
        columns = [column for column in chunks.c if column.name not in ("id", "job_id", "due_at", "batch_id")]
        rows = [
            tx.execute(select(*columns).where(chunks.c.job_id == job_id).order_by(chunks.c.first_item)).all()
            for job_id in (at_one_go, begun.job_id)
        ]
    assert rows[0] == rows[1]


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def test_no_worker_sees_an_upload_before_it_is_accepted(store: Database) -> None:
    begun = begin(store, priority=Priority.INTERACTIVE)
    stage(store, begun, parts(3).chunks)
    assert claim(store, "worker", CARD, 1_000) is None
    assert claim(store, "worker", CARD, 1_000, interactive_only=True) is None
    assert waiting_chunks(store) == 0
    job = get_job(store, "default", begun.job_id)
    assert (job.status, job.total_items, job.prompt_tokens) == (JobStatus.RECEIVING, 3, 21)
    assert [job.id for job in list_jobs(store, "default", JobStatus.RECEIVING)] == [begun.job_id]
    accept_upload(store, begun, "hash")
    assert status(store, begun.job_id) is JobStatus.QUEUED
    assert len(take(store).chunk_ids) == 3


def test_the_flow_of_an_upload_is_opened_when_its_chunks_are_released(store: Database) -> None:
    begun = begin(store, tenant="other")
    stage(store, begun, parts(1).chunks)
    with store.read() as tx:
        assert tx.execute(select(flows)).all() == []
    accept_upload(store, begun, "hash")
    with store.read() as tx:
        assert tx.execute(select(flows)).all() == [(MODEL, "other", False, True, 0.0)]


def test_an_upload_without_items_succeeds_when_it_is_accepted(store: Database) -> None:
    begun = begin(store)
    accept_upload(store, begun, "hash")
    assert status(store, begun.job_id) is JobStatus.SUCCEEDED


def test_the_due_time_of_an_upload_counts_from_its_acceptance(
    timed_store: Database, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "CHUNKS_PER_STEP", 1)
    begun = begin(timed_store)
    stage(timed_store, begun, parts(3).chunks)
    late = begin(timed_store, expires_in=32.0)
    stage(timed_store, late, parts(1).chunks)
    clock.turn(30)
    for upload in (begun, late):
        accept_upload(timed_store, upload, "hash")
    with timed_store.read() as tx:
        due = {
            upload.job_id: set(tx.scalars(select(chunks.c.due_at).where(chunks.c.job_id == upload.job_id)))
            for upload in (begun, late)
        }
    assert due == {begun.job_id: {clock.now + 5}, late.job_id: {clock.now + 2}}


def test_chunks_are_released_in_many_steps_and_the_job_ends_once(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers finish chunks while others are still staged: the counter must not reach zero before the last one."""
    monkeypatch.setattr(uploads, "CHUNKS_PER_STEP", 2)
    begun = begin(store)
    stage(store, begun, parts(7).chunks)
    step = uploads._release_step
    ends: list[str] = []

    def step_and_score(*arguments: Any) -> int | None:
        after = step(*arguments)
        while claimed := claim(store, "worker", CARD, 1_000):
            ends.extend(finish_all(store, claimed).job_ids)
            assert bool(ends) == (after is None)
        return after

    monkeypatch.setattr(uploads, "_release_step", step_and_score)
    accept_upload(store, begun, "hash")
    assert ends == [begun.job_id]
    assert get_job(store, "default", begun.job_id).scored_items == 7


def test_a_process_that_dies_while_it_releases_chunks_leaves_an_accepted_job(
    timed_store: Database, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "CHUNKS_PER_STEP", 2)
    begun = begin(timed_store)
    stage(timed_store, begun, parts(5).chunks)
    with monkeypatch.context() as dying:
        dying.setattr(uploads, "release_chunks", lambda db, job_id: uploads._release_step(db, job_id, -1))
        accept_upload(timed_store, begun, "hash")
    accepted_at = clock.now
    assert (status(timed_store, begun.job_id), waiting_chunks(timed_store)) == (JobStatus.QUEUED, 2)
    clock.turn(TIMEOUT - 1)
    assert sweep(timed_store).models == frozenset()
    clock.turn(1)
    assert sweep(timed_store).models == {MODEL}
    assert waiting_chunks(timed_store) == 5
    with timed_store.read() as tx:
        assert set(tx.scalars(select(chunks.c.due_at))) == {accepted_at + 5}
    assert sweep(timed_store).models == frozenset()


def test_several_processes_may_release_chunks_at_once(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "CHUNKS_PER_STEP", 3)
    begun = begin(store)
    stage(store, begun, parts(40).chunks)
    with monkeypatch.context() as dying:
        dying.setattr(uploads, "release_chunks", lambda db, job_id: None)
        accept_upload(store, begun, "hash")
    at_once(4, lambda _: release_chunks(store, begun.job_id))
    while claimed := claim(store, "worker", CARD, 30):
        finish_all(store, claimed)
    assert (status(store, begun.job_id), count(store, chunks)) == (JobStatus.SUCCEEDED, 40)


@pytest.mark.parametrize(
    ("end", "expected"),
    [("cancel", ErrorCode.JOB_CANCELLED), ("delete", ErrorCode.JOB_NOT_FOUND), ("expire", ErrorCode.JOB_FAILED)],
)
def test_an_upload_whose_job_ended_accepts_no_further_part(
    timed_store: Database, clock: HandClock, end: str, expected: ErrorCode
) -> None:
    begun = begin(timed_store, key="key", expires_in=10.0)
    stage(timed_store, begun, parts(2).chunks)
    if end == "cancel":
        assert cancel(timed_store, "default", begun.job_id).status is JobStatus.CANCELLED
    elif end == "delete":
        delete(timed_store, "default", begun.job_id)
    else:
        clock.turn(10)
        assert sweep(timed_store).job_ids == (begun.job_id,)
    assert code(lambda: stage(timed_store, begun, parts(1, first=2).chunks)) is expected
    assert code(lambda: stage(timed_store, begun)) is expected
    assert code(lambda: accept_upload(timed_store, begun, "hash")) is expected
    remove_upload(timed_store, begun.job_id)
    assert claim(timed_store, "worker", CARD, 100) is None
    begin(timed_store, key="key")
    # A cancelled or expired job is kept like any ended job; a deleted job is gone.
    assert count(timed_store, jobs) == (1 if end == "delete" else 2)
    clock.turn(7 * DAY)
    sweep(timed_store)
    assert [count(timed_store, table) for table in (jobs, chunks)] == [0, 0]


def test_an_aborted_upload_leaves_no_rows_and_frees_its_key(store: Database) -> None:
    begun = begin(store, key="key")
    stage(store, begun, parts(3).chunks)
    remove_upload(store, begun.job_id)
    assert code(lambda: get_job(store, "default", begun.job_id)) is ErrorCode.JOB_NOT_FOUND
    assert [count(store, table) for table in (jobs, chunks, idempotency_keys)] == [0, 0, 0]
    begin(store, key="key")


def test_an_accepted_upload_is_not_aborted(store: Database) -> None:
    begun = begin(store)
    stage(store, begun, parts(1).chunks)
    accept_upload(store, begun, "hash")
    remove_upload(store, begun.job_id)
    assert not abort_upload(store, begun.job_id)
    assert status(store, begun.job_id) is JobStatus.QUEUED


def test_an_upload_whose_receiver_died_is_swept_and_one_that_is_slow_is_not(
    timed_store: Database, clock: HandClock
) -> None:
    dead, slow = begin(timed_store, key="dead"), begin(timed_store)
    for begun in (dead, slow):
        stage(timed_store, begun, parts(2).chunks)
    clock.turn(TIMEOUT - 1)
    stage(timed_store, slow)
    assert sweep(timed_store).job_ids == ()
    clock.turn(1)
    swept = sweep(timed_store)
    assert (swept.job_ids, swept.removed, swept.models) == ((dead.job_id,), 1, frozenset())
    assert code(lambda: stage(timed_store, dead)) is ErrorCode.JOB_NOT_FOUND
    assert [job.id for job in list_jobs(timed_store, "default")] == [slow.job_id]
    assert (count(timed_store, chunks), count(timed_store, idempotency_keys)) == (2, 0)
    begin(timed_store, key="dead")


def test_sweeps_do_not_abort_an_upload_that_was_heard_of_after_they_read_it(
    timed_store: Database, clock: HandClock
) -> None:
    begun = begin(timed_store)
    clock.turn(TIMEOUT)
    stage(timed_store, begun)
    assert not abort_upload(timed_store, begun.job_id, silent_seconds=TIMEOUT)
    assert status(timed_store, begun.job_id) is JobStatus.RECEIVING


def test_an_upload_reserves_its_key_before_its_body_is_known(timed_store: Database, clock: HandClock) -> None:
    begun = begin(timed_store, key="key")
    in_progress = ErrorCode.IDEMPOTENCY_IN_PROGRESS
    assert code(lambda: begin_upload(timed_store, submission(chunks=0), "key")) is in_progress
    assert code(lambda: accept(timed_store, submission(idempotency=Idempotency("key", "hash")))) is in_progress
    clock.turn(30)
    accept_upload(timed_store, begun, "hash")
    assert begin_upload(timed_store, submission(chunks=0), "key") == EarlierUpload(begun.job_id, "hash")
    assert accept(timed_store, submission(idempotency=Idempotency("key", "hash"))).job_id == begun.job_id
    reused = ErrorCode.IDEMPOTENCY_KEY_REUSED
    assert code(lambda: accept(timed_store, submission(idempotency=Idempotency("key", "other")))) is reused
    # The key is valid from the acceptance on.
    clock.turn(DAY - 1)
    assert isinstance(begin_upload(timed_store, submission(chunks=0), "key"), EarlierUpload)
    clock.turn(1)
    begin(timed_store, key="key")


def test_concurrent_uploads_with_one_key_begin_one_upload(store: Database) -> None:
    def attempt(_: int) -> str:
        try:
            begun = begin_upload(store, submission(chunks=0), "key")
        except RequestError as error:
            return error.code
        return type(begun).__name__

    assert sorted(at_once(8, attempt)) == ["Upload", *["idempotency_in_progress"] * 7]


def test_cancelling_while_staging_leaves_no_staged_chunks(store: Database) -> None:
    """The transaction that locks the job first wins. No chunk is staged for a job that has ended."""
    for _ in range(5):
        begun = begin(store)
        gate = threading.Barrier(2)

        def act(number: int, begun: Upload = begun, gate: threading.Barrier = gate) -> None:
            gate.wait()
            if number:
                cancel(store, "default", begun.job_id)
                return
            try:
                for first in range(0, 40, 4):
                    stage(store, begun, parts(4, first=first).chunks)
                accept_upload(store, begun, "hash")
            except RequestError as error:
                if error.code is not ErrorCode.JOB_CANCELLED:
                    raise

        at_once(2, act)
        assert status(store, begun.job_id) is JobStatus.CANCELLED
        with store.read() as tx:
            states = set(tx.scalars(select(chunks.c.state).where(chunks.c.job_id == begun.job_id)))
        assert states <= {"dropped"}
    assert claim(store, "worker", CARD, 100) is None


def test_reading_a_page_far_into_a_job_reads_no_chunk_before_it(store: Database) -> None:
    job_id = submit(store, chunks=30, rows=3)
    while claimed := claim(store, "worker", CARD, 1_000):
        finish_all(store, claimed)
    for offset, limit in ((0, 1), (2, 3), (3, 3), (50, 7), (88, 10), (89, 1), (90, 5)):
        page = read_scores(store, "default", job_id, offset, limit)
        assert page.indices.tolist() == list(range(offset, min(offset + limit, 90)))
    # If the page read these chunks, it would return the wrong items.
    with store.write() as tx:
        tx.execute(update(chunks).where(chunks.c.first_item < 48).values(item_count=1_000))
    assert read_scores(store, "default", job_id, 48, 3).indices.tolist() == [48, 49, 50]


def test_staged_chunks_count_among_those_that_wait(store: Database) -> None:
    submit(store)
    upload = begin(store)
    assert not has_more_than(store, 1)
    stage(store, upload, parts(3).chunks)
    assert has_more_than(store, 3)
    assert not has_more_than(store, 4)
    assert has_more_than(store, 0)
    accept_upload(store, upload, "hash")
    assert has_more_than(store, 3)
    assert not has_more_than(store, 4)


def test_chunks_of_all_models_and_versions_count_among_those_that_wait(store: Database) -> None:
    for model, work_key in (("tiny", CARD.work_key), ("tiny", "of the version before"), ("another", CARD.work_key)):
        submit(store, model=model, work_key=work_key)
    submit(store, tenant="acme")
    assert has_more_than(store, 3)
    assert not has_more_than(store, 4)
    assert has_more_than(store, 1, ("tiny", "default"))
    assert not has_more_than(store, 2, ("tiny", "default"))
