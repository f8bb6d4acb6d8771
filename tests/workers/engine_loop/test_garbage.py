"""When a worker collects its garbage, and when not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from tests.workers.conftest import SLEEPY, Store, Worker
from tests.workers.engines import MadeUpEngine
from workers.engine_loop import garbage
from workers.engine_loop.garbage import Garbage, settle


class Ring:
    """Something that only the collector takes away."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """The collector as every test finds it."""
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside_a_batch_and_its_garbage_is_after_it() -> None:
    thrown_away: list[weakref.ref[Ring]] = []
    kept = Garbage()
    with kept.kept():
        with kept.kept():
            assert not gc.isenabled()
            thrown_away.append(weakref.ref(Ring()))
        assert not gc.isenabled(), "what was let in has ended, and the batch around it goes on"
        assert thrown_away[0]() is not None
    assert gc.isenabled()
    assert thrown_away[0]() is None


def test_a_batch_that_fails_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(InterruptedError), Garbage().kept():
        raise InterruptedError
    assert gc.isenabled()


@pytest.mark.parametrize("when", ["idle", "busy"])
def test_what_is_old_is_collected_only_every_so_often(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Garbage()

    def act() -> None:
        if when == "idle":
            worker.idle()
        else:
            with worker.kept():
                pass

    ring = Ring()
    gc.collect()  # it is old from here on
    old = weakref.ref(ring)
    del ring
    act()
    assert old() is not None
    monkeypatch.setattr(garbage, f"{when.upper()}_SECONDS", 0.0)
    act()
    assert old() is None


def test_what_start_up_left_is_not_looked_at_again() -> None:
    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() > before + 1_000
    assert len(gc.get_objects()) < 1_000


def test_a_worker_collects_nothing_between_steps(store: Store, start_worker: Callable[..., Worker]) -> None:
    engine = MadeUpEngine()
    enabled: list[bool] = []
    engine.before = {step: lambda: enabled.append(gc.isenabled()) for step in range(3)}
    job_id = store.submit(chunks=3)
    start_worker(store, SLEEPY, engine).loop.wake()
    store.wait_for(job_id)
    assert enabled == [False] * 3
