"""How long the phases of jobs took is counted by phase and priority."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sqlalchemy import text

from scoring.options import Priority
from tests.services import wait_until
from tests.workers.conftest import Store, Worker
from tests.workers.engines import MadeUpEngine
from workers.engine_loop.measuring.metrics import Phase

StartWorker = Callable[..., Worker]


def observed(worker: Worker, phase: Phase, priority: Priority, of: str = "count") -> float:
    """Return how often a phase was counted, or with ``sum`` the seconds of all of them."""
    name, labels = f"scoreline_worker_job_phase_seconds_{of}", {"phase": phase.value, "priority": priority.value}
    found = worker.loop._metrics._registry.get_sample_value(name, labels)
    assert found is not None, "the series exists before anything is counted"
    return found


def all_are_counted(worker: Worker, priority: Priority) -> bool:
    """Whether each phase that one job in one batch has once was counted once."""
    once = (Phase.ACCEPT_TO_CLAIM, Phase.ACCEPT_TO_END, Phase.CLAIM_TO_FIRST_SCORE)
    return all(observed(worker, phase, priority) == 1 for phase in once)


def test_each_phase_of_a_job_is_counted_with_its_priority(store: Store, start_worker: StartWorker) -> None:
    job_ids = [store.submit(chunks=3, priority=Priority.BULK), store.submit(chunks=1, priority=Priority.NORMAL)]
    with store.database.write() as tx:
        tx.execute(text("UPDATE jobs SET created_at = created_at - 1000 WHERE priority = 'bulk'"))
    worker = start_worker(store)
    for job_id in job_ids:
        store.wait_for(job_id)
    for priority in (Priority.BULK, Priority.NORMAL):
        wait_until(partial(all_are_counted, worker, priority), f"the phases of {priority} are counted")
        assert observed(worker, Phase.SCORE_TO_COMMIT, priority) >= 1
    for phase in Phase:
        assert observed(worker, phase, Priority.INTERACTIVE) == 0
    # On the clock of the database, so that a wait before this worker started counts, too.
    for phase in (Phase.ACCEPT_TO_CLAIM, Phase.ACCEPT_TO_END):
        assert 1000 <= observed(worker, phase, Priority.BULK, "sum") < 1100
        assert 0 <= observed(worker, phase, Priority.NORMAL, "sum") < 100


def test_a_job_that_a_worker_has_not_finished_has_only_its_first_phases(
    store: Store, start_worker: StartWorker
) -> None:
    worker = start_worker(store, engine=MadeUpEngine.held())
    store.submit(chunks=2)
    assert worker.engine.holding.wait(30)
    assert observed(worker, Phase.ACCEPT_TO_END, Priority.NORMAL) == 0
    assert observed(worker, Phase.SCORE_TO_COMMIT, Priority.NORMAL) == 0
