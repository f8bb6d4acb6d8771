"""Interactive work preempts other work between its steps, on a real store and with an engine that needs no model.

"Bulk" is a job that nobody waits for, "call" is an interactive job. What a test does in mid-batch is run by the
engine's own thread before the step with a given number, so nothing here depends on how fast steps are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from jobs.queue.claims.claim import claim
from jobs.queue.lease import release
from jobs.queue.read import has_waiting, read_scores
from jobs.queue.sweep import sweep
from jobs.store.records import JobStatus
from scoring.options import Priority
from tests.databases import ON_BOTH
from tests.services import wait_until
from tests.workers.conftest import CARD, SLEEPY, Store, Worker
from tests.workers.engines import POISON, MadeUpEngine
from workers.engine_loop.claimer import LoopTiming
from workers.engine_loop.loop import EngineBrokenError

StartWorker = Callable[..., Worker]

LONG = 200
"""Chunks of a long call: more than the worker scores in a quarter of a second, as far as it can know."""
OTHER = "another"
"""A tenant beside the default one."""
BULK, CALL = 7, 50
"""First tokens of the chunks of a bulk job and of a call. The engine records them for each step."""
POLLING_EACH_STEP = LoopTiming(claim_seconds=4.0, poll_seconds=0.0)


class Scene:
    """A worker whose batch can be joined by calls before a given step."""

    def __init__(self, store: Store, start_worker: StartWorker) -> None:
        self.store = store
        self.engine = MadeUpEngine()
        self.calls: list[str] = []
        self._start_worker = start_worker
        self.worker: Worker | None = None

    def start(self, timing: LoopTiming = SLEEPY) -> Worker:
        """Start the worker. What is to happen before its steps can use it: the first step may come at once."""
        is_known = threading.Event()

        def later(action: Callable[[], None]) -> Callable[[], None]:
            def when_known() -> None:
                is_known.wait()
                action()

            return when_known

        self.engine.before = {step: later(action) for step, action in self.engine.before.items()}
        self.worker = self._start_worker(self.store, timing, self.engine)
        is_known.set()
        return self.worker

    def call(self, *, ring: bool = True, **given: Any) -> None:
        self.calls.append(self.store.submit(priority=Priority.INTERACTIVE, **{"token": CALL} | given))
        if ring and self.worker is not None:
            self.worker.loop.wake()

    def call_before(self, step: int, **given: Any) -> None:
        self.engine.before[step] = lambda: self.call(**given)


@pytest.fixture
def scene(store: Store, start_worker: StartWorker) -> Scene:
    return Scene(store, start_worker)


def test_a_call_is_scored_after_the_step_during_which_it_was_submitted(scene: Scene) -> None:
    bulk = scene.store.submit(chunks=6)
    scene.call_before(2)
    scene.start()
    scene.store.wait_for(bulk)
    assert scene.engine.steps == [BULK, BULK, BULK, CALL, BULK, BULK, BULK]
    assert scene.store.status(scene.calls[0]) is JobStatus.SUCCEEDED
    scene.call()
    scene.store.wait_for(scene.calls[1])
    preempting, alone = (read_scores(scene.store.database, "default", call, 0, 10) for call in scene.calls)
    assert preempting.scores.logits.tolist() == alone.scores.logits.tolist()
    assert preempting.indices.tolist() == [0, 1]


def test_calls_submitted_during_one_step_are_scored_as_one_batch(scene: Scene) -> None:
    def three() -> None:
        for n in range(3):
            scene.call(token=CALL + n)

    bulk = scene.store.submit(chunks=3)
    scene.engine.before[0] = three
    scene.start()
    scene.store.wait_for(bulk)
    assert scene.engine.steps == [BULK, CALL, CALL + 1, CALL + 2, BULK, BULK]
    assert len(scene.engine.batches) == 2


def test_a_call_whose_ring_is_lost_is_found_by_polling(scene: Scene) -> None:
    bulk = scene.store.submit(chunks=6)
    scene.call_before(2, ring=False)
    scene.start(POLLING_EACH_STEP)
    scene.store.wait_for(bulk)
    assert scene.engine.steps == [BULK, BULK, BULK, CALL, BULK, BULK, BULK]


def test_a_call_that_waits_when_more_urgent_work_is_claimed_is_scored_after_one_step(
    store_url: str, start_worker: StartWorker
) -> None:
    scene = Scene(Store(store_url, slack_normal_seconds=0.0), start_worker)
    bulk = scene.store.submit(chunks=3)
    scene.call()
    scene.start()
    scene.store.wait_for(bulk)
    assert scene.engine.steps == [BULK, CALL, BULK, BULK]


def test_a_batch_polls_after_its_first_step_and_after_a_ring(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    polls: list[int] = []

    def counted(*given: Any, interactive_only: bool = False) -> bool:
        if interactive_only:
            polls.append(len(scene.engine.steps))
        return has_waiting(*given, interactive_only=interactive_only)

    monkeypatch.setattr("workers.engine_loop.claimer.has_waiting", counted)
    bulk = scene.store.submit(chunks=100)
    scene.engine.before[30] = lambda: scene.worker.loop.wake() if scene.worker else None
    scene.start()
    scene.store.wait_for(bulk)
    assert polls == [1, 31], "how many steps were done at each poll"


def test_a_batch_goes_on_by_a_step_between_two_that_preempt_it(scene: Scene) -> None:
    bulk = scene.store.submit(chunks=5)
    scene.call_before(0, chunks=600)  # more than one preempting claim takes
    scene.start()
    scene.store.wait_for(bulk)
    runs = [(token, len(list(steps))) for token, steps in groupby(scene.engine.steps)]
    assert [token for token, _ in runs[:4]] == [BULK, CALL, BULK, CALL]
    assert runs[2] == (BULK, 1)
    assert scene.store.status(scene.calls[0]) is JobStatus.SUCCEEDED


@pytest.mark.parametrize(("chunks", "tenant"), [(3, OTHER), (LONG, "default")])
def test_calls_preempt_neither_short_calls_nor_calls_of_the_same_tenant(scene: Scene, chunks: int, tenant: str) -> None:
    scene.call(chunks=chunks, tenant=tenant)
    scene.call_before(1, token=CALL + 1)
    scene.start()
    wait_until(lambda: len(scene.calls) == 2, "the second call")
    scene.store.wait_for(scene.calls[1])
    assert scene.engine.steps == [CALL] * chunks + [CALL + 1]


@ON_BOTH
def test_a_short_call_preempts_a_long_call_of_another_tenant(scene: Scene) -> None:
    scene.call(chunks=LONG, tenant=OTHER)
    scene.call_before(2, token=CALL + 1)
    scene.start()
    wait_until(lambda: len(scene.calls) == 2, "the second call")
    wait_until(lambda: len(scene.engine.steps) == LONG + 1, "both calls are scored")
    assert scene.engine.steps == [CALL, CALL, CALL, CALL + 1, *[CALL] * (LONG - 3)]


def test_a_short_call_preempts_a_long_call_that_preempts_a_job(scene: Scene) -> None:
    bulk = scene.store.submit(chunks=2)
    scene.call_before(0, chunks=LONG, tenant=OTHER)
    scene.call_before(2, token=CALL + 1)
    scene.start()
    scene.store.wait_for(bulk)
    assert scene.engine.steps == [BULK, CALL, CALL, CALL + 1, *[CALL] * (LONG - 2), BULK]


def test_a_long_call_is_not_preempted_by_another_long_one(scene: Scene) -> None:
    scene.call(chunks=LONG, tenant=OTHER)
    scene.call_before(2, token=CALL + 1, items=LONG)
    scene.start()
    wait_until(lambda: len(scene.calls) == 2, "the second call")
    scene.store.wait_for(scene.calls[1])
    assert scene.engine.steps == [CALL] * LONG + [CALL + 1]


def test_short_calls_of_a_tenant_delay_a_long_call_by_about_its_own_length(scene: Scene) -> None:
    scene.call(chunks=LONG, tenant=OTHER)
    scene.call_before(2, token=CALL + 1, chunks=600)
    scene.start()
    wait_until(lambda: len(scene.calls) == 2, "the second call")
    scene.store.wait_for(scene.calls[1])
    steps = scene.engine.steps
    meanwhile = steps[: len(steps) - steps[::-1].index(CALL)].count(CALL + 1)
    assert 0 < meanwhile <= 2 * LONG
    assert len(steps) == LONG + 600


def test_bulk_work_whose_ring_was_used_by_a_poll_between_steps_is_still_found(scene: Scene) -> None:
    later: list[str] = []

    def submit() -> None:
        later.append(scene.store.submit(token=11))
        assert scene.worker is not None
        scene.worker.loop.wake()

    bulk = scene.store.submit(chunks=4)
    scene.engine.before[1] = submit
    scene.start()
    scene.store.wait_for(bulk)
    scene.store.wait_for(later[0])
    assert scene.engine.steps == [BULK] * 4 + [11]


def test_stopping_during_preemption_gives_back_the_rest_of_both_batches(scene: Scene) -> None:
    scene.store.submit(chunks=4)
    scene.call_before(0, chunks=3)
    scene.engine.before[2] = lambda: scene.worker.loop.stop() if scene.worker else None
    worker = scene.start()
    wait_until(worker.ended, "the loop ends")
    assert worker.failure is None
    assert scene.engine.steps == [BULK, CALL, CALL]
    assert scene.store.scored_items(scene.calls[0]) == 4, "the scores of the present step are committed"
    # Chunks that are given back are not suspected of poison, so each next claim takes all chunks of a job at once.
    for chunks in (1, 3):
        given_back = claim(scene.store.database, "another", CARD, 10**6)
        assert given_back is not None
        assert len(given_back.chunk_ids) == chunks


def test_a_batch_keeps_its_lease_during_preemption_whose_time_is_not_counted_as_its_own(
    store_url: str, start_worker: StartWorker
) -> None:
    scene = Scene(Store(store_url, lease_seconds=0.4), start_worker)
    bulk = scene.store.submit(chunks=3)
    scene.call_before(0)
    scene.engine.before[1] = scene.engine.hold
    with capture_logs() as logs:
        scene.start()
        wait_until(scene.engine.holding.is_set, "the call is being scored")
        several_leases = time.monotonic() + 1.5
        while time.monotonic() < several_leases:
            assert sweep(scene.store.database).models == frozenset()
        scene.engine.go_on()
        scene.store.wait_for(bulk)
        wait_until(lambda: len([line for line in logs if line["event"] == "scored"]) == 2, "both are logged")
    assert scene.engine.steps == [BULK, CALL, BULK, BULK]
    inner, outer = (line for line in logs if line["event"] == "scored")
    assert (inner["interactive"], outer["interactive"]) == (True, False)
    assert inner["seconds"] >= 1.5
    assert outer["seconds"] < 1.5


@ON_BOTH
def test_a_batch_that_is_lost_during_preemption_is_dropped_after_it(store_url: str, start_worker: StartWorker) -> None:
    scene = Scene(Store(store_url, lease_seconds=0.4), start_worker)

    def lose_outer() -> None:
        with scene.store.database.read() as connection:
            found = connection.execute(text("SELECT DISTINCT batch_id FROM chunks WHERE job_id = :id"), {"id": bulk})
            (batch_id,) = (row.batch_id for row in found)
        assert release(scene.store.database, batch_id).waiting > 0
        taken = claim(scene.store.database, "another", CARD, 10**6)
        assert taken is not None
        wait_until(lambda: any(line["event"].startswith("lost a batch") for line in logs), "the loss is noticed")

    bulk = scene.store.submit(chunks=3)
    scene.call_before(0, chunks=2)
    scene.engine.before[1] = lose_outer
    with capture_logs() as logs:
        scene.start()
        wait_until(
            lambda: any(line["event"] == "dropping a lost batch" for line in logs),
            "the batch is dropped",
        )
        scene.store.wait_for(scene.calls[0])
    assert scene.engine.steps == [BULK, CALL, CALL]


def test_a_poison_call_fails_and_the_batch_that_it_preempted_succeeds_at_its_first_try(scene: Scene) -> None:
    bulk = scene.store.submit(chunks=5)
    scene.call_before(1, token=POISON)
    worker = scene.start()
    scene.store.wait_for(bulk)
    scene.store.wait_for(scene.calls[0], JobStatus.FAILED)
    assert [batch for batch in scene.engine.steps if batch == BULK] == [BULK] * 5, "each bulk chunk was scored once"
    wait_until(lambda: set(worker.bell.ended) == {bulk, *scene.calls}, "the end of each job is announced")
    assert worker.failure is None


def test_an_engine_that_breaks_during_preemption_ends_the_loop_and_fails_no_job(
    scene: Scene, start_worker: StartWorker
) -> None:
    bulk = scene.store.submit(chunks=4)
    scene.call_before(0)
    scene.engine.before[1] = lambda: setattr(scene.engine, "broken", True)
    worker = scene.start()
    wait_until(worker.ended, "the loop ends")
    assert isinstance(worker.failure, EngineBrokenError)
    second = start_worker(scene.store)
    for job_id in (bulk, *scene.calls):
        scene.store.wait_for(job_id)
    # Either job may be claimed first, because the first worker gave them back one after the other.
    assert sorted(len(groups[0].chunks) for groups in second.engine.batches) == [1, 3], (
        "no chunk is suspected of poison"
    )


def test_an_error_of_a_preempting_claim_ends_the_loop_and_blames_no_batch(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claim_that_fails(*given: Any, interactive_only: bool, **options: Any) -> Any:
        if interactive_only:
            raise ValueError("a row that can't be read")
        return claim(*given, **options)

    monkeypatch.setattr("workers.engine_loop.claimer.claim", claim_that_fails)
    scene.store.submit(chunks=4)
    scene.call_before(0)
    worker = scene.start()
    wait_until(worker.ended, "the loop ends")
    assert isinstance(worker.failure, ValueError)
    claim(scene.store.database, "another", CARD, 10**6, interactive_only=True)
    given_back = claim(scene.store.database, "another", CARD, 10**6)
    assert given_back is not None
    assert len(given_back.chunk_ids) == 3
