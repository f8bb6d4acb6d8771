"""A loop with a device that would wait for it claims the next batch before the end of the present one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from jobs.queue.claims.claim import claim
from jobs.queue.read import get_job
from jobs.queue.sweep import sweep
from jobs.store.records import JobStatus
from scoring.options import Priority
from tests.services import wait_until
from tests.workers.conftest import CARD, SLEEPY, Store, Worker
from tests.workers.engines import MadeUpEngine

BULK, CALL = 7, 50
"""First tokens of the chunks of a bulk job and of a call. The engine records them for each step."""

OF_A_BATCH = 3
"""Chunks."""

StartWorker = Callable[..., Worker]


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each claim so far that found work, whether that was interactive. None takes more than a few chunks."""
    found: list[bool] = []

    def noted(*given: Any, **options: Any) -> Any:
        claimed = claim(*given, **{**options, "max_chunks": OF_A_BATCH})
        if claimed is not None:
            found.append(claimed.interactive)
        return claimed

    monkeypatch.setattr("workers.engine_loop.claimer.claim", noted)
    return found


def has_claimed(claims: list[bool], count: int) -> bool:
    return len(claims) == count


@pytest.fixture
def engine() -> MadeUpEngine:
    return MadeUpEngine()


def test_the_next_batch_is_claimed_while_the_present_one_is_scored(
    store: Store, start_worker: StartWorker, engine: MadeUpEngine, claims: list[bool]
) -> None:
    bulk = store.submit(chunks=3 * OF_A_BATCH)
    for number in (1, 2):
        engine.before[number * OF_A_BATCH - 1] = partial(
            wait_until, partial(has_claimed, claims, number + 1), "the claim"
        )
    start_worker(store, SLEEPY, engine, claims_ahead=True)
    store.wait_for(bulk)
    assert [len(groups[0].chunks) for groups in engine.batches] == [OF_A_BATCH] * 3


def test_what_is_claimed_ahead_is_given_back_when_the_worker_stops(
    store: Store, start_worker: StartWorker, engine: MadeUpEngine, claims: list[bool]
) -> None:
    store.submit(chunks=3 * OF_A_BATCH)
    workers: list[Worker] = []

    def stop() -> None:
        wait_until(lambda: len(claims) > 1, "the claim")
        wait_until(lambda: bool(workers), "the worker to be known")
        workers[0].loop.stop()

    engine.before[1] = stop
    workers.append(start_worker(store, SLEEPY, engine, claims_ahead=True))
    wait_until(workers[0].ended, "the worker to end")
    assert workers[0].failure is None
    rest = claim(store.database, "another", CARD, 10**6)
    assert rest is not None
    assert len(rest.chunk_ids) == 3 * OF_A_BATCH - 2, "all but the two that were scored"


def test_a_call_that_is_claimed_ahead_does_not_wait_for_the_end_of_the_batch(
    store: Store,
    start_worker: StartWorker,
    engine: MadeUpEngine,
    claims: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.engine_loop.claimer.has_waiting", lambda *_, interactive_only: not interactive_only)
    bulk, calls = store.submit(chunks=2 * OF_A_BATCH, token=BULK), list[str]()
    engine.before[0] = lambda: calls.append(store.submit(token=CALL, priority=Priority.INTERACTIVE))
    engine.before[1] = lambda: wait_until(lambda: claims == [False, True], "the claim")
    start_worker(store, SLEEPY, engine, claims_ahead=True)
    store.wait_for(bulk)
    assert engine.steps.count(BULK) == 2 * OF_A_BATCH
    assert engine.steps.index(CALL) < OF_A_BATCH
    assert store.status(calls[0]) is JobStatus.SUCCEEDED


def test_an_error_of_a_claim_ahead_ends_the_loop_and_what_was_scored_is_stored(
    store: Store,
    start_worker: StartWorker,
    engine: MadeUpEngine,
    claims: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def claim_that_fails(*given: Any, **options: Any) -> Any:
        if claims:
            raise ValueError("a row that can't be read")
        claims.append(False)
        return claim(*given, **{**options, "max_chunks": OF_A_BATCH})

    monkeypatch.setattr("workers.engine_loop.claimer.claim", claim_that_fails)
    bulk = store.submit(chunks=2 * OF_A_BATCH)
    worker = start_worker(store, SLEEPY, engine, claims_ahead=True)
    wait_until(worker.ended, "the loop to end")
    assert isinstance(worker.failure, ValueError)
    assert 2 * store.scored_items(bulk) == get_job(store.database, "default", bulk).total_items


def test_the_lease_of_a_batch_that_is_claimed_ahead_is_renewed_until_its_turn(
    store_url: str, start_worker: StartWorker, engine: MadeUpEngine, claims: list[bool]
) -> None:
    store = Store(store_url, lease_seconds=1.0)
    bulk = store.submit(chunks=2 * OF_A_BATCH)

    def wait() -> None:
        wait_until(lambda: len(claims) == 2, "the claim")
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() > begun + 2.5, "more than the length of a lease to pass")
        assert sweep(store.database).models == frozenset(), "no lease has run out"

    engine.before[1] = wait
    start_worker(store, SLEEPY, engine, claims_ahead=True)
    store.wait_for(bulk)
    assert claims == [False, False], "nobody had to claim any of it again"
    store.database.close()
