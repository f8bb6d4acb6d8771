"""Jobs that are staged piece by piece: invisible until all has come, then jobs like any other, or nothing at all."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from alembic import command
from sqlalchemy import func, select, update

from jobs.queue import upload as uploads
from jobs.queue.accept import accept
from jobs.queue.claim import claim
from jobs.queue.ending import cancel, delete
from jobs.queue.read import backlog, get_job, list_jobs, read_scores
from jobs.queue.sweep import sweep
from jobs.queue.upload import EarlierUpload, Upload, accept_upload, begin_upload, give_up, let_go, remove_upload, stage
from jobs.store.database import Database
from jobs.store.records import Idempotency, JobStatus, Submission
from jobs.store.revisions import alembic_config
from jobs.store.tables import chunks, idempotency_keys, jobs, lanes
from scoring.error_codes import ErrorCode, RequestError
from scoring.options import Priority
from tests.jobs.conftest import HandClock
from tests.jobs.work import CARD, MODEL, at_once, finish_all, submission, submit, take

TIMEOUT = 60.0
DAY = 86_400.0


def begin(store: Database, key: str | None = None, **given: Any) -> Upload:
    begun = begin_upload(store, submission(chunks=0, **given), key)
    assert isinstance(begun, Upload)
    return begun


def parts(count: int, rows: int = 1, first: int = 0) -> Submission:
    """So many chunks, the first of them number ``first`` of its job."""
    whole = submission(chunks=first + count, rows=rows)
    return replace(
        whole,
        chunks=whole.chunks[first:],
        total_items=count * rows,
        prompt_tokens=sum(int(part.sequence_lengths.sum()) for _, part in whole.chunks[first:]),
    )


def status(store: Database, job_id: str) -> JobStatus:
    return get_job(store, "default", job_id).status


def count(store: Database, table: Any) -> Any:
    with store.read() as connection:
        return connection.scalar(select(func.count()).select_from(table))


def code(action: Any) -> ErrorCode:
    with pytest.raises(RequestError) as refused:
        action()
    return refused.value.code


def test_a_staged_job_is_that_which_would_have_come_at_once(store: Database) -> None:
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
    with store.read() as connection:
        columns = [column for column in chunks.c if column.name not in ("id", "job_id", "due_at", "batch_id")]
        rows = [
            connection.execute(select(*columns).where(chunks.c.job_id == job_id).order_by(chunks.c.first_item)).all()
            for job_id in (at_one_go, begun.job_id)
        ]
    assert rows[0] == rows[1]


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def test_no_worker_sees_a_job_before_all_of_it_has_come(store: Database) -> None:
    begun = begin(store, priority=Priority.INTERACTIVE)
    stage(store, begun, parts(3).chunks)
    assert claim(store, "worker", CARD, 1_000) is None
    assert claim(store, "worker", CARD, 1_000, interactive_only=True) is None
    assert backlog(store, MODEL).chunks == 0
    job = get_job(store, "default", begun.job_id)
    assert (job.status, job.total_items, job.prompt_tokens) == (JobStatus.RECEIVING, 3, 21)
    assert [job.id for job in list_jobs(store, "default", JobStatus.RECEIVING)] == [begun.job_id]
    accept_upload(store, begun, "hash")
    assert status(store, begun.job_id) is JobStatus.QUEUED
    assert len(take(store).chunk_ids) == 3


def test_its_tenant_has_its_turn_from_when_work_is_let_go(store: Database) -> None:
    begun = begin(store, tenant="other")
    stage(store, begun, parts(1).chunks)
    with store.read() as connection:
        assert connection.execute(select(lanes)).all() == []
    accept_upload(store, begun, "hash")
    with store.read() as connection:
        assert connection.execute(select(lanes)).all() == [(MODEL, "other", False, True, 0.0)]


def test_a_job_without_items_succeeds_when_it_has_come(store: Database) -> None:
    begun = begin(store)
    accept_upload(store, begun, "hash")
    assert status(store, begun.job_id) is JobStatus.SUCCEEDED


def test_work_is_due_from_when_all_of_it_had_come(
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
    with timed_store.read() as connection:
        due = {
            upload.job_id: set(connection.scalars(select(chunks.c.due_at).where(chunks.c.job_id == upload.job_id)))
            for upload in (begun, late)
        }
    assert due == {begun.job_id: {clock.now + 5}, late.job_id: {clock.now + 2}}


def test_what_is_let_go_in_many_steps_ends_once_and_whole(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers finish chunks while others are still staged: the counter must not reach zero before the last one."""
    monkeypatch.setattr(uploads, "CHUNKS_PER_STEP", 2)
    begun = begin(store)
    stage(store, begun, parts(7).chunks)
    step = uploads._let_go_further
    ends: list[str] = []

    def step_and_score(*arguments: Any) -> int | None:
        after = step(*arguments)
        while claimed := claim(store, "worker", CARD, 1_000):
            ends.extend(finish_all(store, claimed).job_ids)
            assert bool(ends) == (after is None)
        return after

    monkeypatch.setattr(uploads, "_let_go_further", step_and_score)
    accept_upload(store, begun, "hash")
    assert ends == [begun.job_id]
    assert get_job(store, "default", begun.job_id).scored_items == 7


def test_a_process_that_dies_while_letting_go_leaves_an_accepted_job(
    timed_store: Database, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "CHUNKS_PER_STEP", 2)
    begun = begin(timed_store)
    stage(timed_store, begun, parts(5).chunks)
    with monkeypatch.context() as dying:
        dying.setattr(uploads, "let_go", lambda db, job_id: uploads._let_go_further(db, job_id, -1))
        accept_upload(timed_store, begun, "hash")
    accepted_at = clock.now
    assert (status(timed_store, begun.job_id), backlog(timed_store, MODEL).chunks) == (JobStatus.QUEUED, 2)
    clock.turn(TIMEOUT - 1)
    assert sweep(timed_store).models == frozenset()
    clock.turn(1)
    assert sweep(timed_store).models == {MODEL}
    assert backlog(timed_store, MODEL).chunks == 5
    with timed_store.read() as connection:
        assert set(connection.scalars(select(chunks.c.due_at))) == {accepted_at + 5}
    assert sweep(timed_store).models == frozenset()


def test_letting_go_at_once_does_no_harm(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "CHUNKS_PER_STEP", 3)
    begun = begin(store)
    stage(store, begun, parts(40).chunks)
    with monkeypatch.context() as dying:
        dying.setattr(uploads, "let_go", lambda db, job_id: None)
        accept_upload(store, begun, "hash")
    at_once(4, lambda _: let_go(store, begun.job_id))
    while claimed := claim(store, "worker", CARD, 30):
        finish_all(store, claimed)
    assert (status(store, begun.job_id), count(store, chunks)) == (JobStatus.SUCCEEDED, 40)


@pytest.mark.parametrize(
    ("end", "expected"),
    [("cancel", ErrorCode.JOB_CANCELLED), ("delete", ErrorCode.JOB_NOT_FOUND), ("expire", ErrorCode.JOB_FAILED)],
)
def test_a_job_that_ends_while_it_comes_takes_nothing_more(
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
    # What ended for its owner to see is kept like any job that ended; what its owner deleted is gone.
    assert count(timed_store, jobs) == (1 if end == "delete" else 2)
    clock.turn(7 * DAY)
    sweep(timed_store)
    assert [count(timed_store, table) for table in (jobs, chunks)] == [0, 0]


def test_what_is_given_up_is_gone_with_all_its_rows_and_frees_its_key(store: Database) -> None:
    begun = begin(store, key="key")
    stage(store, begun, parts(3).chunks)
    remove_upload(store, begun.job_id)
    assert code(lambda: get_job(store, "default", begun.job_id)) is ErrorCode.JOB_NOT_FOUND
    assert [count(store, table) for table in (jobs, chunks, idempotency_keys)] == [0, 0, 0]
    begin(store, key="key")


def test_what_is_accepted_is_not_given_up(store: Database) -> None:
    begun = begin(store)
    stage(store, begun, parts(1).chunks)
    accept_upload(store, begun, "hash")
    remove_upload(store, begun.job_id)
    assert not give_up(store, begun.job_id)
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


def test_sweeps_do_not_give_up_an_upload_that_shows_life_after_they_looked(
    timed_store: Database, clock: HandClock
) -> None:
    begun = begin(timed_store)
    clock.turn(TIMEOUT)
    stage(timed_store, begun)
    assert not give_up(timed_store, begun.job_id, silent_seconds=TIMEOUT)
    assert status(timed_store, begun.job_id) is JobStatus.RECEIVING


def test_a_key_is_taken_before_the_body_is_known(timed_store: Database, clock: HandClock) -> None:
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
    # Remembered from when it was accepted.
    clock.turn(DAY - 1)
    assert isinstance(begin_upload(timed_store, submission(chunks=0), "key"), EarlierUpload)
    clock.turn(1)
    begin(timed_store, key="key")


def test_one_key_at_once_begins_one_upload(store: Database) -> None:
    def attempt(_: int) -> str:
        try:
            begun = begin_upload(store, submission(chunks=0), "key")
        except RequestError as error:
            return error.code
        return type(begun).__name__

    assert sorted(at_once(8, attempt)) == ["Upload", *["idempotency_in_progress"] * 7]


def test_cancelling_and_staging_at_once_never_leave_work_behind(store: Database) -> None:
    """Whoever locks the job first wins; no chunk is staged for a job that has ended."""
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
        with store.read() as connection:
            states = set(connection.scalars(select(chunks.c.state).where(chunks.c.job_id == begun.job_id)))
        assert states <= {"dropped"}
    assert claim(store, "worker", CARD, 100) is None


def test_reading_a_page_far_into_a_job_looks_at_no_chunk_before_it(store: Database) -> None:
    job_id = submit(store, chunks=30, rows=3)
    while claimed := claim(store, "worker", CARD, 1_000):
        finish_all(store, claimed)
    for offset, limit in ((0, 1), (2, 3), (3, 3), (50, 7), (88, 10), (89, 1), (90, 5)):
        page = read_scores(store, "default", job_id, offset, limit)
        assert page.indices.tolist() == list(range(offset, min(offset + limit, 90)))
    # Had the page looked further back, it would stumble over this.
    with store.write() as connection:
        connection.execute(update(chunks).where(chunks.c.first_item < 48).values(item_count=1_000))
    assert read_scores(store, "default", job_id, 48, 3).indices.tolist() == [48, 49, 50]


def test_a_downgrade_keeps_what_was_accepted_and_drops_what_was_still_coming(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming, accepted = begin(store), begin(store)
    for begun in (coming, accepted):
        stage(store, begun, parts(2).chunks)
    monkeypatch.setattr(uploads, "let_go", lambda db, job_id: None)
    accept_upload(store, accepted, "hash")
    with store.write() as connection:
        command.downgrade(alembic_config(connection), "0003")
        command.upgrade(alembic_config(connection), "head")
    assert [job.id for job in list_jobs(store, "default")] == [accepted.job_id]
    assert len(take(store).chunk_ids) == count(store, chunks) == 2
