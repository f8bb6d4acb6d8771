"""A job from acceptance to its end, one process at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.queue.ending import cancel, delete
from jobs.queue.finish import finish
from jobs.queue.read import get_job, has_waiting, list_jobs, read_scores, statuses, waiting_work_keys
from jobs.queue.statistics import read_statistics
from jobs.store.database import Database
from jobs.store.records import Idempotency, JobStatus, Origin
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import Head
from scoring.options import Priority, ScoreOptions
from tests.jobs.conftest import HandClock
from tests.jobs.interleaving import READ_JOB, once_after
from tests.jobs.work import CARD, LABELS, finish_all, scored, submission, submit, take, waiting_chunks


def missing(error: pytest.ExceptionInfo[RequestError]) -> bool:
    return error.value.code is ErrorCode.JOB_NOT_FOUND


def test_a_job_is_scored_and_read_back_as_it_was_submitted(store: Database) -> None:
    job_id = submit(
        store,
        chunks=3,
        rows=2,
        metadata={"who": "me 😀 \x00"},
        options=ScoreOptions(return_logits=True),
        priority=Priority.BULK,
        warnings=("mind this",),
        expires_in=500.0,
    )
    queued = get_job(store, "default", job_id)
    assert (queued.status, queued.scored_items, queued.started_at) == (JobStatus.QUEUED, 0, None)
    assert queued.expires_at == pytest.approx(queued.created_at + 500)

    claimed = take(store)
    assert get_job(store, "default", job_id).status is JobStatus.RUNNING
    [group] = claimed.groups
    assert group.prefix.tolist() == [1, 2, 3]
    assert [chunk.rows.tokens.tolist() for chunk in group.chunks] == [[n] * 4 + [n + 1] * 4 for n in (0, 2, 4)]
    assert {(chunk.label_token_ids, chunk.head) for chunk in group.chunks} == {(LABELS, Head.LOGPROBS)}

    assert finish_all(store, claimed).job_ids == (job_id,)
    job = get_job(store, "default", job_id)
    assert (job.status, job.scored_items, job.total_items, job.cached_tokens) == (JobStatus.SUCCEEDED, 6, 6, 6)
    assert job.created_at <= (job.started_at or 0) <= (job.finished_at or 0)
    assert (job.metadata, job.warnings) == ({"who": "me 😀 \x00"}, ("mind this",))
    assert (job.options, job.priority) == (ScoreOptions(return_logits=True), Priority.BULK)
    page = read_scores(store, "default", job_id, 0, 100)
    assert page.indices.tolist() == list(range(6))
    assert page.scores.logits.tolist() == [[n, n + 0.25] for n in range(6)]
    assert page.scores.logprobs is not None
    assert page.scores.logprobs.tolist() == [[-n, -n - 0.25] for n in range(6)]
    assert not page.has_more


def test_a_job_without_items_succeeds_at_once(store: Database) -> None:
    job_id = submit(store, chunks=0)
    job = get_job(store, "default", job_id)
    assert (job.status, job.total_items) == (JobStatus.SUCCEEDED, 0)
    assert job.finished_at is not None
    assert claim(store, "worker", CARD, 100) is None
    assert len(read_scores(store, "default", job_id, 0, 10).scores) == 0


def test_job_ids_sort_by_time() -> None:
    from jobs.store.identifiers import new_job_id

    ids = [new_job_id() for _ in range(2_000)]
    assert len(set(ids)) == 2_000
    assert [name[:16] for name in ids] == sorted(name[:16] for name in ids)
    assert {(name[16], name[20] in "89ab", len(name)) for name in ids} == {("7", True, 36)}


def test_pages_hold_what_was_scored_so_far_in_index_order_without_holes(store: Database) -> None:
    job_id = submit(store, chunks=4, rows=3)
    claimed = take(store)
    first, second, third, last = scored(claimed)
    finish(store, claimed.batch_id, [last])
    finish(store, claimed.batch_id, [second])
    page = read_scores(store, "default", job_id, 0, 100)
    assert page.indices.tolist() == [3, 4, 5, 9, 10, 11]
    assert page.scores.logits[:, 0].tolist() == [3, 4, 5, 9, 10, 11]
    assert (page.job.status, page.job.scored_items) == (JobStatus.RUNNING, 6)
    part = read_scores(store, "default", job_id, 4, 6)
    assert (part.indices.tolist(), part.has_more) == ([4, 5, 9], True)
    assert not read_scores(store, "default", job_id, 4, 8).has_more
    assert finish(store, claimed.batch_id, [first, third]).job_ids == (job_id,)
    assert read_scores(store, "default", job_id, 0, 100).indices.tolist() == list(range(12))


def test_a_job_that_is_deleted_while_it_is_read_is_missing(store: Database) -> None:
    job_id = submit(store, rows=3)
    finish_all(store, take(store))
    once_after(store, READ_JOB, lambda: delete(store, "default", job_id))
    with pytest.raises(RequestError) as caught:
        read_scores(store, "default", job_id, 0, 10)
    assert missing(caught)


def test_a_page_without_scores_is_read_without_an_error(store: Database) -> None:
    job_id = submit(store, chunks=2)
    assert len(read_scores(store, "default", job_id, 0, 10).scores) == 0
    finish(store, (claimed := take(store)).batch_id, scored(claimed)[:1])
    assert len(read_scores(store, "default", job_id, 1, 10).scores) == 0


def test_scores_keep_every_bit(store: Database) -> None:
    job_id = submit(store, options=ScoreOptions(apply_softmax=True))
    claimed = take(store)
    [chunk] = scored(claimed)
    odd = np.array([[np.float32(-np.inf), np.nextafter(np.float32(1), np.float32(2))]], np.float32)
    finish(store, claimed.batch_id, [type(chunk)(chunk.id, type(chunk.scores)(odd, None), 0)])
    page = read_scores(store, "default", job_id, 0, 1)
    assert page.scores.logits.tobytes() == odd.tobytes()
    assert page.scores.logprobs is None


def test_scores_of_the_wrong_shape_are_refused_and_change_nothing(store: Database) -> None:
    job_id = submit(store, rows=3)
    claimed = take(store)
    [right] = scored(claimed)
    wrong = type(right)(right.id, type(right.scores)(right.scores.logits[:2], None), 0)
    with pytest.raises(ValueError, match="has 3 items, scored were 2"):
        finish(store, claimed.batch_id, [wrong])
    assert finish(store, claimed.batch_id, [right]).job_ids == (job_id,)


def test_another_tenants_job_is_a_missing_job(store: Database) -> None:
    job_id = submit(store, tenant="alice")
    for call in (
        lambda: get_job(store, "bob", job_id),
        lambda: read_scores(store, "bob", job_id, 0, 1),
        lambda: cancel(store, "bob", job_id),
        lambda: delete(store, "bob", job_id),
    ):
        with pytest.raises(RequestError) as error:
            call()
        assert missing(error)
    assert list_jobs(store, "bob") == []
    assert get_job(store, "alice", job_id).status is JobStatus.QUEUED


def test_tenants_with_one_query_do_not_share_a_group(store: Database) -> None:
    submit(store, tenant="alice")
    submit(store, tenant="bob")
    submit(store, tenant="bob")
    groups = take(store).groups
    assert [len(group.chunks) for group in groups] == [1, 2]
    assert len({group.owner for group in groups}) == 2


def test_jobs_are_listed_newest_first_in_pages_by_status(store: Database) -> None:
    ids = sorted((submit(store) for _ in range(5)), reverse=True)
    call = submit(store, origin=Origin.CALL)
    assert [job.id for job in list_jobs(store, "default", limit=10)] == ids
    assert [job.id for job in list_jobs(store, "default", limit=2, after=ids[1])] == ids[2:4]
    cancel(store, "default", ids[3])
    assert [job.id for job in list_jobs(store, "default", JobStatus.CANCELLED)] == [ids[3]]
    assert statuses(store, [ids[0], ids[3], call, "job_none"]) == {
        ids[0]: JobStatus.QUEUED,
        ids[3]: JobStatus.CANCELLED,
        call: JobStatus.QUEUED,
    }


def test_the_backlog_counts_what_waits(store: Database) -> None:
    assert not has_waiting(store, CARD)
    submit(store, chunks=2, rows=3, row_tokens=4)
    assert has_waiting(store, CARD)
    assert not has_waiting(store, replace(CARD, name="other"))
    assert [(queue.chunks, queue.tokens) for queue in read_statistics(store, 20.0).queues] == [(2, 2 * 3 * (3 + 4))]
    take(store)
    assert read_statistics(store, 20.0).queues == ()
    assert not has_waiting(store, CARD)


def test_the_versions_that_have_work_are_found(store: Database) -> None:
    for version in (3, 1, 2, 1):
        submit(store, work_key=f"version {version}")
    submit(store, model="other", work_key="version 4")
    assert waiting_work_keys(store, CARD.name) == {"version 1", "version 2", "version 3"}
    assert waiting_work_keys(store, "nobody's") == set()


def test_cancelling_twice_is_cancelling_once(timed_store: Database, clock: HandClock) -> None:
    job_id = submit(timed_store, chunks=3)
    claimed = take(timed_store)
    finish(timed_store, claimed.batch_id, scored(claimed)[:1])
    first = cancel(timed_store, "default", job_id)
    clock.turn(10)
    assert cancel(timed_store, "default", job_id) == first
    assert first.status is JobStatus.CANCELLED
    assert claim(timed_store, "worker", CARD, 1_000) is None
    assert finish(timed_store, claimed.batch_id, scored(claimed)[1:]).fenced == 2
    assert get_job(timed_store, "default", job_id) == first
    assert read_scores(timed_store, "default", job_id, 0, 10).indices.tolist() == [0]


def test_an_end_is_not_changed_by_cancelling(store: Database) -> None:
    job_id = submit(store)
    finish_all(store, take(store))
    assert cancel(store, "default", job_id).status is JobStatus.SUCCEEDED


def test_a_deleted_job_is_gone_with_its_inputs_and_scores(store: Database) -> None:
    from sqlalchemy import func, select

    from jobs.queue.sweep import sweep
    from jobs.store.tables import chunk_inputs, chunk_scores, chunks, idempotency_keys, jobs, prefixes

    kept = submit(store, prefix=(5, 5))
    gone = submit(store, chunks=3, idempotency=Idempotency("key", "hash"))
    claimed = take(store, budget=14)
    finish_all(store, claimed)
    delete(store, "default", gone)
    with pytest.raises(RequestError) as error:
        get_job(store, "default", gone)
    assert missing(error)
    assert statuses(store, [gone]) == {}
    sweep(store)
    with store.read() as tx:
        left = {
            table.name: tx.scalar(select(func.count()).select_from(table))
            for table in (jobs, chunks, chunk_inputs, chunk_scores, idempotency_keys, prefixes)
        }
    assert left == {"jobs": 1, "chunks": 1, "chunk_inputs": 1, "chunk_scores": 1, "idempotency_keys": 0, "prefixes": 1}
    assert get_job(store, "default", kept).status is JobStatus.SUCCEEDED


def test_a_prefix_is_stored_once_for_all_jobs_that_share_it(store: Database) -> None:
    from sqlalchemy import func, select

    from jobs.store.tables import prefixes

    for _ in range(3):
        submit(store, prefix=range(2_000))
    submit(store, prefix=())
    with store.read() as tx:
        assert tx.scalar(select(func.count()).select_from(prefixes)) == 2
    assert [len(group.prefix) for group in take(store).groups] == [2_000, 0]


def test_the_same_key_and_body_is_the_same_job(store: Database) -> None:
    first = accept(store, submission(idempotency=Idempotency("key", "hash")))
    again = accept(store, submission(idempotency=Idempotency("key", "hash")))
    assert not first.replayed
    assert (again.job_id, again.replayed) == (first.job_id, True)
    with pytest.raises(RequestError) as error:
        accept(store, submission(idempotency=Idempotency("key", "other")))
    assert error.value.code is ErrorCode.IDEMPOTENCY_KEY_REUSED
    elsewhere = accept(store, submission(tenant="bob", idempotency=Idempotency("key", "other")))
    assert not elsewhere.replayed
    assert waiting_chunks(store) == 2


def test_a_key_is_free_again_when_its_time_is_over_or_its_job_is_gone(timed_store: Database, clock: HandClock) -> None:
    keyed = submission(idempotency=Idempotency("key", "hash"))
    first = accept(timed_store, keyed)
    clock.turn(86_399)
    assert accept(timed_store, keyed).job_id == first.job_id
    clock.turn(1)
    second = accept(timed_store, keyed)
    assert second.job_id != first.job_id
    delete(timed_store, "default", second.job_id)
    assert not accept(timed_store, keyed).replayed


def test_a_submission_that_miscounts_its_items_can_not_be_made() -> None:
    with pytest.raises(ValueError, match="hold 2 items, not 3"):
        submission(rows=2, total_items=3)
