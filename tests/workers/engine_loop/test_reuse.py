"""Scores are computed once: equal items of a job, and those of later jobs, get the very scores that others have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from jobs.file_batches.feeding import NewLine, feed
from jobs.file_batches.removal import delete_batch, sweep_batches
from jobs.file_batches.tables import BatchStatus, file_batches
from jobs.queue.accept import accept
from jobs.queue.ending import cancel, delete
from jobs.queue.provenance import read_provenances
from jobs.queue.read import get_job, read_scores
from jobs.queue.removal import remove_jobs
from jobs.queue.reuse import remove_old
from jobs.queue.sweep import sweep
from jobs.queue.upload import Upload, accept_upload, begin_upload, remove_upload, stage
from jobs.queue.worker_registry import register
from jobs.store.records import JobStatus, Origin, Submission, WorkerRecord
from jobs.store.tables import jobs, kept_scores
from jobs.store.webhook_events import Event, Webhook
from jobs.tenancy.tenants import create_tenant
from jobs.tenant_removal import purge_tenant
from jobs.webhooks.tables import webhook_deliveries
from scoring.chunk import Chunk
from scoring.layout import Continuations, Rows, ScoredChunk
from scoring.options import ScoreOptions, Scoring
from scoring.sources import equal_items
from scoring.work import work_of_rows
from tests.databases import ON_BOTH, quick_on
from tests.jobs.test_file_batches import new_batch
from tests.workers.conftest import CARD, LABELS, Store
from tests.workers.engine_loop.reusing import (
    PREFIX,
    Items,
    Worker,
    chunk,
    expected,
    job,
    kept,
    logits,
    numbered,
    submit,
)


@pytest.fixture
def keeping(store_url: str) -> Iterator[Store]:
    """A store that keeps scores for an hour."""
    store = Store(store_url, reuse_scores_seconds=3600.0)
    yield store
    store.database.close()


@pytest.fixture
def worker(keeping: Store) -> Iterator[Worker]:
    worker = Worker(keeping.database)
    yield worker
    worker.leave()


def test_equal_items_of_a_chunk_are_computed_once_though_nothing_is_kept(store: Store) -> None:
    worker = Worker(store.database)
    items = [[1], [2], [1], [1, 2], [2], [3]]
    job_id = submit(store, items, size=6)
    assert worker.work() == 4
    assert logits(store, job_id) == expected(items)
    found = get_job(store.database, "default", job_id)
    assert found.reused_items == 2
    assert found.cached_tokens == 2 * (len(PREFIX) + 1)
    assert kept(store) == 0
    worker.leave()


@ON_BOTH
def test_a_job_that_was_scored_before_ends_when_it_is_accepted(keeping: Store, worker: Worker) -> None:
    items = numbered(20, 10)
    first = submit(keeping, items)
    assert worker.work() == kept(keeping) == 10
    again = submit(keeping, items, webhook=Webhook("https://example.com/", "example.com", (Event.SUCCEEDED,)))
    assert get_job(keeping.database, "default", again).status is JobStatus.SUCCEEDED
    assert worker.work() == 0
    assert logits(keeping, again) == logits(keeping, first) == expected(items)
    found = get_job(keeping.database, "default", again)
    assert (found.reused_items, found.scored_items) == (10, 10)
    assert found.cached_tokens == found.prompt_tokens
    pages = [read_scores(keeping.database, "default", one, 0, 100) for one in (first, again)]
    assert pages[0].provenances == pages[1].provenances
    stored = read_provenances(keeping.database, [one for one in pages[1].provenances if one is not None])
    assert list(stored.values()) == [replace(worker.provenance, algorithms=("serial",))]
    with keeping.database.read() as tx:
        assert tx.scalars(select(webhook_deliveries.c.job_id)).all() == [again]


@ON_BOTH
def test_only_items_that_changed_are_computed(keeping: Store, worker: Worker) -> None:
    items = numbered(20, 40)
    submit(keeping, items)
    worker.work()
    changed = [*items[:7], [900], *items[8:], items[3], [900]]
    again = submit(keeping, changed)
    assert worker.work() == 2, "the chunks that hold the new item are two, and nothing was kept of it before"
    assert logits(keeping, again) == expected(changed)
    assert get_job(keeping.database, "default", again).reused_items == len(changed) - 2


def begun(store: Store, submission: Submission) -> Upload:
    upload = begin_upload(store.database, replace(submission, chunks=(), total_items=0, prompt_tokens=0), None)
    assert isinstance(upload, Upload)
    return upload


def test_an_upload_reuses_scores_in_all_of_its_parts(keeping: Store, worker: Worker) -> None:
    items = numbered(20, 12)
    submit(keeping, items)
    worker.work()
    wanted = [*items[:8], [900], *items[8:]]
    whole = job(wanted)
    upload = begun(keeping, whole)
    for number in range(0, len(whole.chunks), 2):
        stage(keeping.database, upload, whole.chunks[number : number + 2])
    accept_upload(keeping.database, upload, "hash")
    assert worker.work() == 1
    assert logits(keeping, upload.job_id) == expected(wanted)
    assert get_job(keeping.database, "default", upload.job_id).reused_items == 12
    known = job(items)
    upload = begun(keeping, known)
    stage(keeping.database, upload, known.chunks)
    accept_upload(keeping.database, upload, "hash")
    assert logits(keeping, upload.job_id) == expected(items)


def test_what_differs_in_anything_is_computed(keeping: Store, worker: Worker) -> None:
    items = numbered(20, 4)
    create_tenant(keeping.database, "other")
    submit(keeping, items)
    assert worker.work() == 4
    others: list[dict[str, Any]] = [
        {"tenant": "other"},
        {"label_token_ids": LABELS[::-1]},
        {"label_token_ids": (*LABELS, 6)},
        {"options": ScoreOptions(apply_softmax=True)},
        {"options": ScoreOptions(top=True)},
        {"prefix": np.array([11, 12, 14], np.int32)},
        {"options": ScoreOptions(adapter="one")},
    ]
    for other in others:
        submit(keeping, items, **other)
        assert worker.work() == 4, other
    submit(keeping, items, origin=Origin.CALL)
    assert worker.work() == 4, "calls are computed"
    submit(keeping, items, options=ScoreOptions(temperature=2.0))
    assert worker.work() == 0, "the temperature is applied to what is stored"


def test_an_item_that_sees_less_of_the_query_is_another(keeping: Store, worker: Worker) -> None:
    for ends, computed in (([3, 3], 1), ([3, 2], 1), ([2, 2], 0)):
        rows = Rows.pack([[1], [1]], ends)
        one = Chunk(0, rows, work=work_of_rows(rows, None, 3), sources=equal_items(rows, None))
        accept(keeping.database, job([[1], [1]], chunks=[one]))
        assert worker.work() == computed, ends


def test_a_model_never_gets_the_scores_of_another(keeping: Store, worker: Worker) -> None:
    items = numbered(20, 4)
    submit(keeping, items)
    worker.work()
    other = WorkerRecord("other", replace(CARD, name="other"), "x", "none", "float32", provenance_id=77)
    register(keeping.database, other)
    again = submit(keeping, items, model="other")
    assert get_job(keeping.database, "default", again).reused_items == 0


def test_labels_of_several_tokens_are_reused_and_likelihoods_are_not(keeping: Store, worker: Worker) -> None:
    items = numbered(20, 3)

    def of(targets: Items, scoring: Scoring) -> Submission:
        labels = len(targets) // len(items)
        behind = Continuations.pack(targets, [len(PREFIX) + 2] * len(targets))
        chunks = [chunk(0, items, behind, once=scoring is Scoring.SEQUENCE)]
        return job(items, chunks=chunks, label_token_ids=tuple(range(labels)), options=ScoreOptions(scoring=scoring))

    targets = [[5, 6], [7]] * 3
    first = accept(keeping.database, of(targets, Scoring.SEQUENCE)).job_id
    assert worker.work() == 3
    again = accept(keeping.database, of(targets, Scoring.SEQUENCE)).job_id
    assert worker.work() == 0
    assert logits(keeping, first) == logits(keeping, again)
    accept(keeping.database, of([[5, 6], [8]] * 3, Scoring.SEQUENCE))
    assert worker.work() == 3
    for _ in range(2):
        accept(keeping.database, of([[5], [7], [9]], Scoring.LIKELIHOOD))
        assert worker.work() == 3


@ON_BOTH
def test_another_revision_computes_what_this_one_has_scored(keeping: Store, worker: Worker) -> None:
    items = numbered(20, 6)
    submit(keeping, items)
    worker.work()
    partly = submit(keeping, [*items, [900]])  # planned with the scores of the old revision
    worker.leave()
    newer = Worker(keeping.database, 1)
    assert newer.work() == 3, "of the two chunks, one is done; the other one is computed as a whole"
    page = read_scores(keeping.database, "default", partly, 0, 100)
    assert page.scores.logits.tolist() == [*expected(items[:4]), *expected([*items[4:], [900]], 1)]
    assert len(page.provenances) == 2
    assert page.job.reused_items == 4
    again = submit(keeping, items)
    assert newer.work() == 4, "what the new revision has scored is reused, the rest is computed"
    assert logits(keeping, again) == expected(items, 1)
    newer.leave()


def test_nothing_is_reused_without_a_live_worker_whose_scores_are_exact(keeping: Store, worker: Worker) -> None:
    items = numbered(20, 6)
    submit(keeping, items)
    worker.work()
    worker.leave()
    again = submit(keeping, items)
    assert get_job(keeping.database, "default", again).status is JobStatus.QUEUED
    inexact = Worker(keeping.database, is_exact=False)
    assert inexact.work() == 6
    before = kept(keeping)
    submit(keeping, numbered(700, 4))
    assert inexact.work() == 4
    assert kept(keeping) == before, "its scores are not kept"
    inexact.leave()


@ON_BOTH
def test_deleting_a_job_removes_the_scores_of_its_items(keeping: Store, worker: Worker) -> None:
    create_tenant(keeping.database, "other")
    first = submit(keeping, numbered(20, 6))
    submit(keeping, numbered(20, 6), tenant="other")
    submit(keeping, numbered(100, 3))
    worker.work()
    again = submit(keeping, [*numbered(20, 6), [900]])
    worker.work()
    assert kept(keeping) == 16
    delete(keeping.database, "default", again)
    assert (kept(keeping, "default"), kept(keeping, "other")) == (3, 6), "also those that the deleted job has only used"
    assert logits(keeping, first) == expected(numbered(20, 6))
    submit(keeping, numbered(20, 6))
    assert worker.work() == 6
    purge_tenant(keeping.database, "other")
    assert kept(keeping, "other") == 0


def test_a_job_that_is_deleted_while_it_is_scored_leaves_nothing(keeping: Store, worker: Worker) -> None:
    job_id = submit(keeping, numbered(20, 8))
    original = worker.engine.score

    def score(groups: Any, on_step: Any, on_phase: Any = None) -> Iterator[ScoredChunk]:
        for number, scored in enumerate(original(groups, on_step, on_phase)):
            if number == 1:
                delete(keeping.database, "default", job_id)
            yield scored

    worker.engine.score = score  # type: ignore[method-assign]
    worker.work()
    assert kept(keeping) == 0


@ON_BOTH
def test_scores_outlive_their_job_until_they_are_too_old(keeping: Store, worker: Worker) -> None:
    job_id = submit(keeping, numbered(20, 6))
    worker.work()
    with keeping.database.write() as tx:
        tx.execute(update(jobs).where(jobs.c.id == job_id).values(remove_at=1.0))
    while remove_jobs(keeping.database).found:
        pass
    sweep(keeping.database)
    assert kept(keeping) == 6
    with keeping.database.write() as tx:
        tx.execute(update(kept_scores).values(kept_at=kept_scores.c.kept_at - 3601))
    submit(keeping, numbered(20, 6))
    assert worker.work() == 6, "they are not used any more, though they are still there"
    sweep(keeping.database)
    assert kept(keeping) == 0


@ON_BOTH
@pytest.mark.parametrize("deleted", [False, True])
def test_scores_go_with_a_batch_that_is_deleted_and_outlive_one_whose_retention_is_over(
    keeping: Store, worker: Worker, deleted: bool
) -> None:
    store = keeping.database
    batch = new_batch(store, lines=1)
    line = NewLine(0, batch.input_bytes, "r0", job(numbered(20, 6), origin=Origin.LINE))
    feed(store, batch, [line], read_bytes=batch.input_bytes, read_lines=1, refuse_repeated=lambda line: b"")
    assert worker.work() == kept(keeping) == 6
    if deleted:
        delete_batch(store, "default", batch.id)
    else:
        with store.write() as tx:
            tx.execute(update(file_batches).values(status=BatchStatus.COMPLETED.value, remove_at=1.0))
        sweep_batches(store)
    while remove_jobs(store).found:
        pass
    with store.read() as tx:
        assert tx.scalar(select(jobs.c.id)) is None
    assert kept(keeping) == (0 if deleted else 6)


def test_an_upload_that_breaks_off_leaves_the_scores_of_earlier_jobs(keeping: Store, worker: Worker) -> None:
    submit(keeping, numbered(20, 6))
    worker.work()
    again = job(numbered(20, 6))
    upload = begun(keeping, again)
    stage(keeping.database, upload, again.chunks)
    remove_upload(keeping.database, upload.job_id)
    assert kept(keeping) == 6


def test_the_oldest_scores_give_way_when_there_are_too_many(store_url: str) -> None:
    store = Store(store_url, reuse_scores_seconds=3600.0, max_kept_scores=10)
    worker = Worker(store.database)
    submit(store, numbered(20, 6))
    worker.work()
    submit(store, numbered(100, 8))
    worker.work()
    assert remove_old(store.database) == 4
    submit(store, numbered(100, 8))
    assert worker.work() == 0
    off = Store(store_url)
    submit(off, numbered(100, 8))
    assert worker.work() == 8, "nothing is reused once it is switched off"
    sweep(off.database)
    assert kept(store) == 0
    for one in (store, off):
        one.database.close()
    worker.leave()


def test_a_quota_pays_for_what_is_computed(keeping: Store, worker: Worker) -> None:
    items = numbered(20, 8)
    whole = job(items)
    submit(keeping, items, quota=whole.price or 10_000)
    worker.work()
    price = job(items, quota=10_000).price
    assert price > 20
    assert accept(keeping.database, job(items, quota=20)).reused_items == 8, "a full price would not fit"


def test_a_cancelled_job_reuses_what_it_can_show(keeping: Store, worker: Worker) -> None:
    items = numbered(20, 4)
    submit(keeping, items)
    worker.work()
    again = submit(keeping, [*items, [900], [901]])
    cancel(keeping.database, "default", again)
    page = read_scores(keeping.database, "default", again, 0, 100)
    assert page.scores.logits.tolist() == expected(items)


@quick_on("sqlite")
@pytest.mark.parametrize("seed", range(6))
def test_in_any_history_each_score_is_that_of_its_own_request_and_revision(keeping: Store, seed: int) -> None:
    chance = random.Random(seed)
    submitted: dict[str, tuple[str, Items, tuple[int, ...]]] = {}  # tenant, items and labels of each job
    create_tenant(keeping.database, "other")
    workers = [Worker(keeping.database, 0)]
    for _ in range(60):
        match chance.choice(("submit", "submit", "work", "replace", "delete", "both")):
            case "submit":
                drawn = [[chance.randrange(8)] * chance.randrange(1, 3) for _ in range(chance.randrange(1, 14))]
                labels = chance.choice([(3, 5), (5, 3), (3,)])
                tenant = chance.choice(["default", "other"])
                job_id = submit(keeping, drawn, size=chance.randrange(1, 6), tenant=tenant, label_token_ids=labels)
                submitted[job_id] = tenant, drawn, labels
            case "work":
                chance.choice(workers).loop.turn()
            case "replace":
                workers.pop(0).leave()
                workers.append(Worker(keeping.database, chance.randrange(3)))
            case "both" if len(workers) == 1:
                workers.append(Worker(keeping.database, chance.randrange(3, 5)))
            case "delete" if submitted:
                job_id = chance.choice(list(submitted))
                tenant = submitted.pop(job_id)[0]
                delete(keeping.database, tenant, job_id)
    workers[0].work()
    for job_id, (tenant, items, labels) in submitted.items():
        _check(keeping, job_id, tenant, items, labels)
    for one in workers:
        one.leave()


def _check(store: Store, job_id: str, tenant: str, items: Items, labels: tuple[int, ...]) -> None:
    """See that each item has the scores of the revision that its provenance names."""
    for place, item in enumerate(items):
        page = read_scores(store.database, tenant, job_id, place, 1)
        assert page.provenances[0] is not None
        [provenance] = read_provenances(store.database, [page.provenances[0]]).values()
        revision = int(provenance.weights_fingerprint)
        assert page.scores.logits.tolist() == expected([item], revision, labels)
    assert 0 <= page.job.reused_items <= page.job.total_items
    assert page.job.status is JobStatus.SUCCEEDED
