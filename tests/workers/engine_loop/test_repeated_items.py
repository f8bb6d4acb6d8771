"""Equal items of different chunks of a job are computed once by a worker, and have the scores that others have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from jobs.queue.accept import accept
from jobs.queue.read import get_job, read_scores
from jobs.store.records import JobRecord, Origin
from scoring.layout import Continuations
from scoring.options import Priority, ScoreOptions, Scoring
from scoring.work import work_of_prefix
from tests.databases import ON_BOTH
from tests.workers.conftest import Store
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
from workers.engine_loop import repeated_items


@pytest.fixture
def worker(store: Store) -> Iterator[Worker]:
    worker = Worker(store.database)
    yield worker
    worker.leave()


def by_single_chunks(worker: Worker) -> int:
    """Score all that waits, a chunk with each claim. Return how many items were computed."""
    with patch.object(worker.loop._throughput, "budget", return_value=1):
        return worker.work()


def found(store: Store, job_id: str) -> JobRecord:
    return get_job(store.database, "default", job_id)


@ON_BOTH
def test_an_item_of_an_earlier_chunk_is_not_computed_again(store: Store, worker: Worker) -> None:
    items = numbered(20, 4) * 4
    job_id = submit(store, items)
    assert by_single_chunks(worker) == 4 + 4 + 1 + 1, "the first chunk is not remembered; one item of each is computed"
    assert logits(store, job_id) == expected(items)
    assert found(store, job_id).reused_items == 6
    assert found(store, job_id).cached_tokens == 6 * (len(PREFIX) + 2)
    assert kept(store) == 0
    page = read_scores(store.database, "default", job_id, 0, 100)
    assert len(set(page.provenances)) == 1


def test_chunks_that_are_claimed_together_are_remembered_for_later_ones(store: Store, worker: Worker) -> None:
    items = numbered(20, 8) * 3
    job_id = submit(store, items)
    of_two_chunks = sum(one.work for one in job(items).chunks[:2]) + work_of_prefix(len(PREFIX))
    with patch.object(worker.loop._throughput, "budget", return_value=of_two_chunks):
        assert worker.work() == 8 + 2 + 2
    assert logits(store, job_id) == expected(items)


def test_equal_items_within_chunks_and_across_them_are_told_apart(store: Store, worker: Worker) -> None:
    random_items = random.Random(7)
    for _ in range(20):
        items = [[random_items.randrange(1, 6)] for _ in range(random_items.randrange(1, 40))]
        job_id = submit(store, items, size=random_items.randrange(1, 9))
        computed = by_single_chunks(worker)
        assert logits(store, job_id) == expected(items)
        assert found(store, job_id).reused_items == len(items) - computed


def test_scores_of_earlier_jobs_and_of_earlier_chunks_meet_in_one_chunk(store_url: str) -> None:
    store = Store(store_url, reuse_scores_seconds=3600.0)
    worker = Worker(store.database)
    submit(store, [[20], [21]])
    worker.work()
    items = [[one] for one in (20, 21, 30, 31, 20, 30, 40, 41, 30, 40, 21, 50)]
    job_id = submit(store, items)
    assert by_single_chunks(worker) == 2 + 3 + 1
    assert logits(store, job_id) == expected(items)
    assert found(store, job_id).reused_items == 6
    worker.leave()
    store.database.close()


def test_another_job_computes_its_own_items(store: Store, worker: Worker) -> None:
    items = numbered(20, 4) * 3
    submit(store, items)
    first = by_single_chunks(worker)
    submit(store, items, label_token_ids=(4, 5))
    assert by_single_chunks(worker) == first
    submit(store, items)
    assert by_single_chunks(worker) == first


def test_scores_that_depend_on_neighbours_are_not_used_again(store: Store) -> None:
    worker = Worker(store.database, is_exact=False)
    submit(store, numbered(20, 4) * 3)
    assert by_single_chunks(worker) == 12
    worker.leave()


def test_likelihoods_adapters_and_urgent_work_are_computed(store: Store, worker: Worker) -> None:
    items = numbered(20, 2)
    behind = Continuations.pack([[5], [7]], [len(PREFIX) + 2] * 2)
    for given in (
        {
            "chunks": [chunk(first, items, behind) for first in (0, 2, 4)],
            "options": ScoreOptions(scoring=Scoring.LIKELIHOOD),
        },
        {"options": ScoreOptions(adapter="one")},
        {"priority": Priority.INTERACTIVE},
        {"origin": Origin.CALL},
    ):
        accept(store.database, job(items * 3, **{"size": 2} | given))
        assert by_single_chunks(worker) == 6, given


def test_labels_of_several_tokens_are_remembered(store: Store, worker: Worker) -> None:
    items = numbered(20, 2)
    behind = Continuations.pack([[5, 6], [7]] * 2, [len(PREFIX) + 2] * 4)
    chunks = [chunk(first, items, behind) for first in (0, 2, 4)]
    options = ScoreOptions(scoring=Scoring.SEQUENCE)
    job_id = accept(store.database, job(items * 3, chunks=chunks, label_token_ids=(0, 1), options=options)).job_id
    assert by_single_chunks(worker) == 2 + 2 + 1
    scores = logits(store, job_id)
    assert scores[:2] == scores[2:4] == scores[4:]


def test_the_oldest_jobs_are_forgotten_where_there_are_too_many_items(store: Store, worker: Worker) -> None:
    items: Items = numbered(20, 4) * 3
    with patch.object(repeated_items, "MOST_ITEMS", 6):
        for _ in range(4):
            submit(store, items)
            assert by_single_chunks(worker) == 9
            assert worker.loop._repeated._items <= 6
    with patch.object(repeated_items, "MOST_ITEMS", 2):
        job_id = submit(store, items)
        assert by_single_chunks(worker) == 10, "two of four items are remembered, then the job itself is forgotten"
        assert logits(store, job_id) == expected(items)
