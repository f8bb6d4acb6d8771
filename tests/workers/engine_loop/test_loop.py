"""The scoring loop on a real store, with an engine that computes its scores by a formula."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from jobs.queue.claims.claim import claim
from jobs.queue.ending import cancel
from jobs.queue.lease import release
from jobs.queue.read import get_job, has_waiting, read_scores
from jobs.queue.sweep import sweep
from jobs.store.database import StorageUnavailable
from jobs.store.identifiers import new_notice_key
from jobs.store.records import Claim, JobStatus
from jobs.store.signed_result import verified_result
from jobs.store.tables import batches
from scoring.layout import GroupWork, Head, ScoredChunk
from scoring.options import Priority
from tests.databases import ON_BOTH, quick_on
from tests.jobs.conftest import use_clock
from tests.services import PostgresServer, wait_until
from tests.workers.conftest import CARD, MODEL, SLEEPY, Store, Worker
from tests.workers.engines import POISON, MadeUpEngine
from workers.engine_loop.claimer import LoopTiming
from workers.engine_loop.loop import EngineBrokenError

StartWorker = Callable[..., Worker]


def test_a_waiting_job_is_scored_and_announced(store: Store, start_worker: StartWorker) -> None:
    job_id = store.submit(chunks=3)
    worker = start_worker(store)
    store.wait_for(job_id)
    page = read_scores(store.database, "default", job_id, 0, 10)
    assert page.indices.tolist() == list(range(6))
    wait_until(lambda: worker.bell.ended == [job_id], "its end is announced")


@ON_BOTH
def test_a_call_is_announced_with_its_result_but_not_by_a_batch_that_was_taken_away(
    store: Store, start_worker: StartWorker
) -> None:
    key = new_notice_key()
    worker = start_worker(store, engine=MadeUpEngine.held())
    worker.engine.before[1] = worker.engine.hold
    with capture_logs() as logs:
        job_id = store.submit(notice_key=key)
        wait_until(worker.engine.holding.is_set, "the engine has the batch")
        with store.database.read() as tx:
            batch_id = tx.scalar(select(batches.c.id))
        release(store.database, batch_id)
        worker.engine.go_on()
        wait_until(lambda: said(logs, "scores came too late"), "the batch is refused")
        wait_until(lambda: len(worker.engine.batches) == 2, "the chunk is claimed again")
    assert worker.bell.ended == []
    assert worker.bell.results == {}
    worker.engine.go_on()
    wait_until(lambda: worker.bell.ended == [job_id], "its end is announced")
    found = verified_result(worker.bell.results[job_id], key, items=2, labels=2, head=Head.LOGPROBS)
    assert found is not None
    page = read_scores(store.database, "default", job_id, 0, 10)
    assert found.scores.logits.tobytes() == page.scores.logits.tobytes()


def test_a_scored_batch_is_logged_with_all_and_with_computed_tokens(store: Store, start_worker: StartWorker) -> None:
    job_id = store.submit(chunks=3)
    with capture_logs() as logs:
        start_worker(store)
        store.wait_for(job_id)
        wait_until(lambda: said(logs, "scored"), "the batch is logged")
    (line,) = (line for line in logs if line["event"] == "scored")
    assert (line["tokens"], line["computed"]) == (3 * 9, 3 * 9), "the prefix of two tokens is computed with each item"


def test_a_ring_wakes_an_idle_worker(store: Store, start_worker: StartWorker) -> None:
    worker = start_worker(store, SLEEPY)
    first = store.submit()
    worker.loop.wake()
    store.wait_for(first)
    second = store.submit()
    worker.loop.wake()
    store.wait_for(second)


def test_an_idle_worker_finds_work_by_polling(store: Store, start_worker: StartWorker) -> None:
    start_worker(store)
    store.wait_for(store.submit())


def test_work_that_rang_during_a_batch_follows_it_at_once(
    store: Store, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.engine_loop.loop.RING_SECONDS", 600.0)
    worker, more = start_worker(store, SLEEPY), list[str]()

    def submit_more() -> None:
        more.append(store.submit())
        worker.loop.wake()  # The batch takes this ring to look for interactive work, and finds none.

    worker.engine.before[0] = submit_more
    first = store.submit()
    worker.loop.wake()
    store.wait_for(first)
    (second,) = more
    store.wait_for(second)


def test_work_whose_ring_is_lost_during_a_batch_follows_it_a_moment_later(
    store: Store, start_worker: StartWorker
) -> None:
    worker, more = start_worker(store, SLEEPY), list[str]()
    worker.engine.before[0] = lambda: more.append(store.submit())
    first = store.submit()
    worker.loop.wake()
    store.wait_for(first)
    (second,) = more
    store.wait_for(second)


def test_jobs_that_share_a_prefix_reach_the_engine_as_one_group(store: Store, start_worker: StartWorker) -> None:
    job_ids = [store.submit(prefix=(1, 2 + n % 2)) for n in range(20)]
    worker = start_worker(store)
    for job_id in job_ids:
        store.wait_for(job_id)
    assert [len(groups) for groups in worker.engine.batches] == [2]


def test_a_claim_that_leaves_work_behind_rings_for_another_worker(store: Store, start_worker: StartWorker) -> None:
    # The budget is one token, so each claim takes one chunk.
    job_id = store.submit(chunks=2)
    worker = start_worker(store, LoopTiming(claim_seconds=0.0, poll_seconds=600.0))
    worker.loop.wake()
    store.wait_for(job_id)
    assert worker.bell.rings == [MODEL], "only the first of the two claims left a chunk behind"


def test_interactive_work_of_one_tenant_does_not_keep_the_jobs_of_another_waiting(
    store: Store, start_worker: StartWorker
) -> None:
    last = store.submit(chunks=20, prefix=(1, 2), priority=Priority.INTERACTIVE)
    store.submit(chunks=1, prefix=(3, 4), tenant="another")
    worker = start_worker(store, LoopTiming(claim_seconds=0.0, poll_seconds=600.0))
    store.wait_for(last)
    prefixes = [group.prefix.tolist() for groups in worker.engine.batches for group in groups]
    assert prefixes.index([3, 4]) == 1, "it was claimed after the first chunk of the other tenant"


@ON_BOTH
def test_work_for_another_tokenizer_does_not_keep_a_worker_busy(
    store: Store, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker can't score this work, so it looks once for each ring, and does not ring or look again by itself."""
    looked: list[str] = []

    def count_claim(*given: Any, **named: Any) -> Claim | None:
        claimed = claim(*given, **named)
        looked.append("claim of nothing" if claimed is None else "claim")
        return claimed

    def count_query(*given: Any, **named: Any) -> bool:
        looked.append("query")
        return has_waiting(*given, **named)

    monkeypatch.setattr("workers.engine_loop.claimer.claim", count_claim)
    monkeypatch.setattr("workers.engine_loop.claimer.has_waiting", count_query)
    others = store.submit(chunks=3, tokenizer="another")
    worker = start_worker(store, SLEEPY)

    def wait_for_looks(count: int) -> None:
        wait_until(lambda: len(looked) >= count, "the worker has looked for work")

    for rings in range(1, 5):
        wait_for_looks(rings)
        worker.loop.wake()
    wait_for_looks(5)
    assert looked == ["query", *["claim of nothing"] * 4]
    mine = store.submit()
    worker.loop.wake()
    store.wait_for(mine)
    wait_for_looks(8)
    assert looked[5:] == ["claim", "query", "query"]  # the first of these is for interactive work, after the step
    assert worker.bell.rings == []
    assert store.status(others) is JobStatus.QUEUED


def test_a_sequence_longer_than_the_workers_context_waits_and_its_neighbours_are_scored(
    store: Store, start_worker: StartWorker
) -> None:
    """This happens if the limit is lowered after the job was accepted. A worker with the old limit may still come."""
    too_long = store.submit(prefix=range(CARD.context_length))
    neighbours = [store.submit(prefix=range(CARD.context_length - 3)) for _ in range(3)]
    worker = start_worker(store)
    for job_id in neighbours:
        store.wait_for(job_id)
    assert store.status(too_long) is JobStatus.QUEUED
    assert len(worker.engine.batches) == 1, "the neighbours were one batch, and no chunk was tried twice"


def test_scores_are_committed_while_the_batch_is_still_being_scored(store: Store, start_worker: StartWorker) -> None:
    class HoldsBeforeTheSecond(MadeUpEngine):
        def score(
            self, groups: Sequence[GroupWork], on_step: Callable[[], None], on_phase: object = None
        ) -> Iterator[ScoredChunk]:
            for scored in super().score(groups, on_step):
                yield scored
                self.hold()

    job_id = store.submit(chunks=2)
    start_worker(store, engine=HoldsBeforeTheSecond())
    wait_until(lambda: store.scored_items(job_id) == 2, "the first chunk is committed")
    assert store.status(job_id) is JobStatus.RUNNING


def test_stopping_in_mid_batch_commits_scored_chunks_and_gives_back_the_others(
    store: Store, start_worker: StartWorker
) -> None:
    job_id = store.submit(chunks=10)
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "the engine waits before its first step")
    worker.loop.stop()
    worker.engine.go_on()
    wait_until(worker.ended, "the loop ends")
    assert store.scored_items(job_id) == 2, "the scores of the present step are committed"

    # Chunks that are given back are not suspected of poison, so the next claim takes all of them at once.
    given_back = claim(store.database, "another", CARD, 10**6)
    assert given_back is not None
    assert len(given_back.chunk_ids) == 9


def test_stopping_is_quick_while_idle(store: Store, start_worker: StartWorker) -> None:
    worker = start_worker(store, SLEEPY)
    started = time.monotonic()
    worker.stop()
    assert time.monotonic() - started < 1.0


@quick_on("postgres")
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
    assert "chokes" not in error.message, "the engine's own error is only logged"
    wait_until(lambda: set(worker.bell.ended) == {poison, *before, *after}, "the end of each job is announced")


def test_an_engine_that_fails_at_any_work_ends_the_loop_and_fails_no_job(
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


def test_a_worker_drops_a_batch_that_was_taken_away_and_goes_on(store_url: str, start_worker: StartWorker) -> None:
    store, later = Store(store_url, lease_seconds=0.4), Store(store_url)
    use_clock(later.database, lambda: time.time() + 3600)
    job_id = store.submit()
    with capture_logs() as logs:
        worker = start_worker(store, engine=MadeUpEngine.held())
        wait_until(worker.engine.holding.is_set, "the engine waits before its first step")
        wait_until(lambda: sweep(later.database).models == {MODEL}, "the batch is taken away")
        assert claim(later.database, "another", CARD, 10**6) is not None
        wait_until(lambda: said(logs, "lost a batch: its lease had run out"), "the loss is noticed")
        worker.engine.go_on()
        wait_until(lambda: said(logs, "dropping a lost batch"), "the worker stops working on the batch")
        store.wait_for(store.submit(token=11))
    assert store.scored_items(job_id) == 0, "the chunk belongs to the other worker"
    assert not said(logs, "could not store scores")


def test_a_batch_that_takes_longer_than_its_lease_is_not_taken_away(store_url: str, start_worker: StartWorker) -> None:
    store = Store(store_url, lease_seconds=0.4)
    job_id = store.submit()
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "the engine waits before its first step")
    several_leases = time.monotonic() + 1.5
    while time.monotonic() < several_leases:
        assert sweep(store.database).models == frozenset()
    worker.engine.go_on()
    store.wait_for(job_id)
    assert len(worker.engine.batches) == 1


def said(logs: Sequence[Mapping[str, object]], event: str) -> bool:
    return any(line["event"] == event for line in logs)


def test_a_cancelled_job_does_not_disturb_its_batch(store: Store, start_worker: StartWorker) -> None:
    cancelled, other = store.submit(), store.submit()
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "the engine waits before its first step")
    cancel(store.database, "default", cancelled)
    worker.engine.go_on()
    store.wait_for(other)
    assert store.status(cancelled) is JobStatus.CANCELLED


def test_scores_survive_an_outage_of_the_database_shorter_than_the_lease(
    postgres: PostgresServer, postgres_url: str, start_worker: StartWorker
) -> None:
    store = Store(postgres_url)
    job_id = store.submit(chunks=4)
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "the engine waits before its first step")
    later = store.submit(prefix=(8, 9))  # this commit is durable, which makes the earlier claim durable, too
    with capture_logs() as logs:
        postgres.stop()
        try:
            worker.engine.go_on()
            wait_until(lambda: said(logs, "could not store scores yet"), "a commit has failed")
        finally:
            postgres.start()
        store.wait_for(job_id)
    store.wait_for(later)
    assert len(worker.engine.batches) == 2, "each job was scored once"


def test_a_busy_worker_outlives_a_server_that_only_reads(
    postgres: PostgresServer, postgres_url: str, start_worker: StartWorker
) -> None:
    store = Store(postgres_url)
    job_id = store.submit(chunks=4)
    later = store.submit(prefix=(8, 9))
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "the engine waits before its first step")
    with capture_logs() as logs, postgres.only_reading():
        wait_until(lambda: is_refused(store), "it only reads")
        worker.engine.go_on()
        wait_until(lambda: said(logs, "could not store scores yet"), "a commit has failed")
    store.wait_for(job_id)
    store.wait_for(later)
    assert not said(logs, "could not store scores")


def is_refused(store: Store) -> bool:
    """Whether the database of a store can't be written to."""
    try:
        store.database.check_use()
    except StorageUnavailable:
        return True
    return False


def test_an_idle_worker_survives_an_outage_of_the_database(
    postgres: PostgresServer, postgres_url: str, start_worker: StartWorker
) -> None:
    store = Store(postgres_url)
    with capture_logs() as logs:
        start_worker(store)
        store.wait_for(store.submit())
        postgres.stop()
        try:
            wait_until(lambda: said(logs, "the database is away"), "the outage is noticed")
        finally:
            postgres.start()
        store.wait_for(store.submit())


def test_stopping_is_quick_while_the_database_is_away(
    postgres: PostgresServer, postgres_url: str, start_worker: StartWorker
) -> None:
    store = Store(postgres_url)
    store.submit(chunks=4)
    worker = start_worker(store, engine=MadeUpEngine.held())
    wait_until(worker.engine.holding.is_set, "the engine waits before its first step")
    with capture_logs() as logs:
        postgres.stop()
        try:
            worker.engine.go_on()
            wait_until(lambda: said(logs, "could not store scores yet"), "a commit has failed")
            started = time.monotonic()
            worker.stop()
            assert time.monotonic() - started < 2.0
        finally:
            postgres.start()
