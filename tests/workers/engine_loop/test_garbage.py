"""When a worker collects garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from tests.workers.conftest import SLEEPY, Store, Worker
from tests.workers.engines import MadeUpEngine
from workers.engine_loop import garbage
from workers.engine_loop.garbage import GarbageCollector, freeze


class Cycle:
    """An object that refers to itself, so only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """Restore the collector after every test."""
    yield
    gc.unfreeze()
    gc.enable()


def test_a_batch_runs_without_collections_and_its_garbage_is_collected_at_its_end() -> None:
    thrown_away: list[weakref.ref[Cycle]] = []
    collector = GarbageCollector()
    with collector.paused():
        with collector.paused():
            assert not gc.isenabled()
            thrown_away.append(weakref.ref(Cycle()))
        assert not gc.isenabled(), "the preempting batch has ended, and the batch around it goes on"
        assert thrown_away[0]() is not None
    assert gc.isenabled()
    assert thrown_away[0]() is None


def test_the_collector_is_enabled_again_after_a_batch_that_fails() -> None:
    with pytest.raises(InterruptedError), GarbageCollector().paused():
        raise InterruptedError
    assert gc.isenabled()


@pytest.mark.parametrize("when", ["idle", "busy"])
def test_old_objects_are_collected_only_after_an_interval(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = GarbageCollector()

    def act() -> None:
        if when == "idle":
            collector.collect_idle()
        else:
            with collector.paused():
                pass

    cycle = Cycle()
    gc.collect()  # from now on the object belongs to the old generation
    old = weakref.ref(cycle)
    del cycle
    act()
    assert old() is not None
    monkeypatch.setattr(garbage, f"{when.upper()}_SECONDS", 0.0)
    act()
    assert old() is None


def test_frozen_objects_are_hidden_from_the_collector() -> None:
    before = gc.get_freeze_count()
    freeze()
    assert gc.get_freeze_count() > before + 1_000
    assert len(gc.get_objects()) < 1_000


def test_a_worker_collects_no_garbage_between_steps(store: Store, start_worker: Callable[..., Worker]) -> None:
    engine = MadeUpEngine()
    enabled: list[bool] = []
    engine.before = {step: lambda: enabled.append(gc.isenabled()) for step in range(3)}
    job_id = store.submit(chunks=3)
    start_worker(store, SLEEPY, engine).loop.wake()
    store.wait_for(job_id)
    assert enabled == [False] * 3
