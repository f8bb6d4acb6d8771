"""The scoring loop on a real store, with an engine that makes its scores up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs.queue.claim import claim
from jobs.queue.ending import cancel
from jobs.queue.read import get_job, read_scores
from jobs.queue.sweep import sweep
from jobs.store.records import Claim, JobStatus
from scoring.layout import GroupWork, Scored
from tests.services import PostgresServer, wait_until
from tests.workers.conftest import CARD, MODEL, SLEEPY, Store, Worker
from tests.workers.engines import POISON, MadeUpEngine
from workers.engine_loop.loop import EngineBrokenError, Pace
from workers.engine_loop.watchdog import Progress

StartWorker = Callable[..., Worker]


def test_a_waiting_job_is_scored_and_announced(store: Store, start_worker: StartWorker) -> None:
    job_id = store.submit(chunks=3)
    worker = start_worker(store)
    store.wait_for(job_id)
    page = read_scores(store.database, "default", job_id, 0, 10)
    assert page.indices.tolist() == list(range(6))
    wait_until(lambda: worker.bell.ended == [job_id], "its end is announced")


def test_what_a_batch_took_is_told_in_tokens_that_were_computed(store: Store, start_worker: StartWorker) -> None:
    job_id = store.submit(chunks=3)
    with capture_logs() as logs:
        start_worker(store)
        store.wait_for(job_id)
        wait_until(lambda: said(logs, "scored"), "its log")
    (line,) = (line for line in logs if line["event"] == "scored")
    assert (line["tokens"], line["computed"]) == (3 * 9, 2 + 3 * 5), "the prefix of two once, and each item"


def test_a_ring_wakes_an_idle_worker(store: Store, start_worker: StartWorker) -> None:
    worker = start_worker(store, SLEEPY)
    first = store.submit()
    worker.loop.wake()
    store.wait_for(first)
    second = store.submit()
    worker.loop.wake()
    store.wait_for(second)


def test_work_is_found_without_any_ring(store: Store, start_worker: StartWorker) -> None:
    start_worker(store)
    store.wait_for(store.submit())


def test_jobs_with_one_prefix_come_to_the_engine_as_one_group(store: Store, start_worker: StartWorker) -> None:
    job_ids = [store.submit(prefix=(1, 2 + n % 2)) for n in range(20)]
    worker = start_worker(store)
    for job_id in job_ids:
        store.wait_for(job_id)
    assert [len(groups) for groups in worker.engine.batches] == [2]


def test_a_claim_that_leaves_work_behind_rings_for_another_worker(store: Store, start_worker: StartWorker) -> None:
    # A budget of one token: one chunk a claim.
    job_id = store.submit(chunks=2)
    worker = start_worker(store, Pace(claim_seconds=0.0, poll_seconds=600.0))
    worker.loop.wake()
    store.wait_for(job_id)
    assert worker.bell.rings == [MODEL], "one chunk was left behind once"


def test_work_for_another_tokenizer_keeps_no_worker_busy(
    store: Store, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't take it, so it looks once a ring, and neither rings nor looks again by itself."""
    looked: list[bool] = []

    def counted(*given: Any, **named: Any) -> Claim | None:
        claimed = claim(*given, **named)
        looked.append(claimed is not None)
        return claimed

    monkeypatch.setattr("workers.engine_loop.loop.claim", counted)
    others = store.submit(chunks=3, tokenizer="another")
    worker = start_worker(store, SLEEPY)
    for rings in range(1, 5):
        wait_until(lambda rings=rings: len(looked) >= rings, "it has looked")
        worker.loop.wake()
    wait_until(lambda: len(looked) >= 5, "it has looked")
    assert looked == [False] * 5
    mine = store.submit()
    worker.loop.wake()
    store.wait_for(mine)
    wait_until(lambda: len(looked) >= 7, "it has looked for more")
    assert looked == [False] * 5 + [True, False]
    assert worker.bell.rings == []
    assert store.status(others) is JobStatus.QUEUED


def test_a_row_longer_than_the_workers_context_waits_and_its_neighbours_are_scored(
    store: Store, start_worker: StartWorker
) -> None:
    """The limit was lowered when it was accepted already. A worker with the old limit may still come."""
    too_long = store.submit(prefix=range(CARD.context_length))
    neighbours = [store.submit(prefix=range(CARD.context_length - 3)) for _ in range(3)]
    worker = start_worker(store)
    for job_id in neighbours:
        store.wait_for(job_id)
    assert store.status(too_long) is JobStatus.QUEUED
    assert len(worker.engine.batches) == 1, "they were one batch, and nothing was tried twice"


def test_scores_are_committed_while_the_batch_is_still_being_scored(store: Store, start_worker: StartWorker) -> None:
    class HoldsBeforeTheSecond(MadeUpEngine):
        def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
            for scored in super().score(groups, on_step):
                yield scored
                self.hold()

    job_id = store.submit(chunks=2)
    start_worker(store, engine=HoldsBeforeTheSecond())
    wait_until(lambda: store.scored_items(job_id) == 2, "the first chunk is committed")
    assert store.status(job_id) is JobStatus.RUNNING


def test_stopping_in_mid_batch_finishes_what_is_scored_and_gives_the_rest_back(
    store: Store, start_worker: StartWorker
) -> None:
    job_id = store.submit(chunks=10)
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "it is being scored")
    worker.loop.stop()
    worker.engine.let_go()
    wait_until(worker.ended, "the loop ends")
    assert store.scored_items(job_id) == 2, "the step under way is not lost"

    # Nobody is to blame, so nothing about the next claim is smaller than before.
    given_back = claim(store.database, "another", CARD, 10**6)
    assert given_back is not None
    assert len(given_back.chunk_ids) == 9


def test_stopping_is_quick_while_idle(store: Store, start_worker: StartWorker) -> None:
    worker = start_worker(store, SLEEPY)
    started = time.monotonic()
    worker.stop()
    assert time.monotonic() - started < 1.0


def test_a_poison_job_fails_and_its_neighbours_succeed(store: Store, start_worker: StartWorker) -> None:
    before = [store.submit() for _ in range(5)]
    poison = store.submit(token=POISON)
    after = [store.submit() for _ in range(5)]
    worker = start_worker(store)
    store.wait_for(poison, JobStatus.FAILED)
    for job_id in before + after:
        store.wait_for(job_id)
    error = get_job(store.database, "default", poison).error
    assert error is not None
    assert "scoring it failed" in error.message
    assert "chokes" not in error.message, "details are for the log"
    wait_until(lambda: set(worker.bell.ended) == {poison, *before, *after}, "all ends are announced")


def test_an_engine_that_fails_at_anything_ends_the_loop_and_fails_no_job(
    store: Store, start_worker: StartWorker
) -> None:
    job_ids = [store.submit() for _ in range(5)]
    engine = MadeUpEngine()
    engine.broken = True
    worker = start_worker(store, engine=engine)
    wait_until(worker.ended, "the loop ends")
    assert isinstance(worker.failure, EngineBrokenError)
    start_worker(store)
    for job_id in job_ids:
        store.wait_for(job_id)


def test_a_batch_that_was_taken_away_is_dropped_and_the_worker_goes_on(
    store_url: str, start_worker: StartWorker
) -> None:
    store, later = Store(store_url, lease_seconds=0.4), Store(store_url)
    later.database.clock = lambda: time.time() + 3600
    job_id = store.submit()
    with capture_logs() as logs:
        worker = start_worker(store, engine=MadeUpEngine.held())
        wait_until(worker.engine.holding.is_set, "it is being scored")
        wait_until(lambda: sweep(later.database).models == {MODEL}, "the batch is taken away")
        assert claim(later.database, "another", CARD, 10**6) is not None
        wait_until(lambda: said(logs, "lost a batch: its lease had run out"), "the loss is noticed")
        worker.engine.let_go()
        wait_until(lambda: said(logs, "dropping a lost batch"), "no more work goes into it")
        store.wait_for(store.submit(token=11))
    assert store.scored_items(job_id) == 0, "it is the other worker's"
    assert not said(logs, "could not store scores")


def test_a_batch_that_takes_longer_than_its_lease_is_kept(store_url: str, start_worker: StartWorker) -> None:
    store = Store(store_url, lease_seconds=0.4)
    job_id = store.submit()
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "it is being scored")
    several_leases = time.monotonic() + 1.5
    while time.monotonic() < several_leases:
        assert sweep(store.database).models == frozenset()
    worker.engine.let_go()
    store.wait_for(job_id)
    assert len(worker.engine.batches) == 1


def said(logs: Sequence[Mapping[str, object]], event: str) -> bool:
    return any(line["event"] == event for line in logs)


def test_a_cancelled_job_does_not_disturb_its_batch(store: Store, start_worker: StartWorker) -> None:
    cancelled, other = store.submit(), store.submit()
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "it is being scored")
    cancel(store.database, "default", cancelled)
    worker.engine.let_go()
    store.wait_for(other)
    assert store.status(cancelled) is JobStatus.CANCELLED


def test_scores_survive_an_outage_of_the_database_shorter_than_the_lease(
    postgres: PostgresServer, postgres_url: str, start_worker: StartWorker
) -> None:
    store = Store(postgres_url)
    job_id = store.submit(chunks=4)
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "it is being scored")
    later = store.submit(prefix=(8, 9))  # a commit that is sure to be on disk, and the claim before it with it
    with capture_logs() as logs:
        postgres.stop()
        try:
            worker.engine.let_go()
            wait_until(lambda: said(logs, "could not store scores yet"), "it is scored, and can't be stored")
        finally:
            postgres.start()
        store.wait_for(job_id)
    store.wait_for(later)
    assert len(worker.engine.batches) == 2, "each was scored once"


def test_an_idle_worker_survives_an_outage_of_the_database(
    postgres: PostgresServer, postgres_url: str, start_worker: StartWorker
) -> None:
    store = Store(postgres_url)
    with capture_logs() as logs:
        start_worker(store)
        store.wait_for(store.submit())
        postgres.stop()
        try:
            wait_until(
                lambda: said(logs, "the database is away; looking for work until it is back"), "the outage is noticed"
            )
        finally:
            postgres.start()
        store.wait_for(store.submit())


def test_stopping_is_quick_while_the_database_is_away(
    postgres: PostgresServer, postgres_url: str, start_worker: StartWorker
) -> None:
    store = Store(postgres_url)
    store.submit(chunks=4)
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "it is being scored")
    with capture_logs() as logs:
        postgres.stop()
        try:
            worker.engine.let_go()
            wait_until(lambda: said(logs, "could not store scores yet"), "it is scored, and can't be stored")
            started = time.monotonic()
            worker.stop()
            assert time.monotonic() - started < 2.0
        finally:
            postgres.start()


@pytest.mark.parametrize("beats", [True, False])
def test_an_engine_without_progress_is_reported_and_one_with_progress_is_not(beats: bool) -> None:
    stuck = threading.Event()
    progress = Progress(0.4, stuck.set)
    with progress.expected():
        deadline = time.monotonic() + 1.2
        while time.monotonic() < deadline and not stuck.wait(0.02):
            if beats:
                progress.beat()
    assert stuck.is_set() is not beats
    progress.close()


def test_an_engine_that_makes_no_progress_after_work_was_let_in_is_reported() -> None:
    stuck = threading.Event()
    progress = Progress(0.2, stuck.set)
    with progress.expected():
        with progress.expected():
            pass
        assert stuck.wait(10.0)
    progress.close()


def test_an_idle_engine_is_never_stuck() -> None:
    stuck = threading.Event()
    progress = Progress(0.1, stuck.set)
    with progress.expected():
        pass
    assert not stuck.wait(0.5)
    progress.close()
