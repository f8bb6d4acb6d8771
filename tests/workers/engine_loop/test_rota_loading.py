"""A worker of several models loads them, or can't."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace

from checkpoints.files import CheckpointError
from tests.services import wait_until
from tests.workers.conftest import CARD
from tests.workers.engine_loop.made_up_models import MadeUpModel, Scene
from workers.engine_loop.models.rota import (
    FOLLOWING_SECONDS,
    GRACE_SECONDS,
    MOST_REFUSED_SECONDS,
    REFUSED_SECONDS,
)
from workers.engine_loop.models.wanted import Loaded
from workers.engine_loop.watchdog import Watchdog


def test_a_version_serves_until_the_next_one_is_loaded(scene: Scene) -> None:
    scene.model("one", 1)
    scene.start(budget_bytes=20)
    wait_until(lambda: scene.live() == {("one", 1)}, "it is served")
    scene.models.append(MadeUpModel(replace(CARD, name="one", version=2), scene.clock, fault="its files are gone"))
    second = scene.models[1]
    del scene.models[0]
    scene.pass_time(10 * GRACE_SECONDS)
    wait_until(lambda: scene.rota is not None and len(scene.rota._seats) == 2, "the next one is known")
    scene.pass_time(10 * GRACE_SECONDS)
    assert scene.live() == {("one", 1)}, "nobody could score what is asked of it"
    second.fault = None
    scene.pass_time(MOST_REFUSED_SECONDS)
    wait_until(lambda: ("one", 2) in scene.live(), "it is loaded")
    scene.pass_time_until({("one", 2)}, "the one before is gone")


def test_a_model_that_can_not_be_loaded_harms_no_other_and_is_tried_again(scene: Scene) -> None:
    broken = scene.model("broken", fault="its files are gone")
    scene.model("right")
    scene.start(budget_bytes=20)
    job = scene.store.submit(model="broken")
    scene.store.wait_for(scene.store.submit(model="right"))
    broken.fault = None
    scene.pass_time(REFUSED_SECONDS)
    scene.store.wait_for(job)


def test_a_version_that_was_never_loaded_keeps_nobody(scene: Scene) -> None:
    scene.model("one", 1)
    rota = scene.start(budget_bytes=20)
    wait_until(lambda: scene.live() == {("one", 1)}, "it is served")
    second = MadeUpModel(replace(CARD, name="one", version=2), scene.clock, fault="it is too large")
    scene.models[:] = [second]

    def is_known() -> bool:
        scene.pass_time(FOLLOWING_SECONDS)
        return ("one", 2) in rota._seats

    wait_until(is_known, "the second is known")
    scene.models[:] = [MadeUpModel(replace(CARD, name="one", version=3), scene.clock)]
    scene.pass_time_until({("one", 3)}, "the third takes the place of both")
    assert list(rota._seats) == [("one", 3)]


def test_a_model_that_is_larger_than_the_memory_takes_no_place(scene: Scene) -> None:
    small, large = scene.model("small"), scene.model("large", nbytes=400)
    rota = scene.start(budget_bytes=15)
    job = scene.store.submit(model="large")
    scene.store.wait_for(scene.store.submit(model="small"))
    wait_until(lambda: rota._seats["large", None].refused, "it is refused")
    assert (small.loaded, large.loaded, scene.store.scored_items(job)) == (1, 0, 0)


def test_a_model_that_can_not_be_loaded_again_counts_as_served_no_more(scene: Scene) -> None:
    one, _ = scene.model("one"), scene.model("two")
    scene.start(budget_bytes=15)
    wait_until(lambda: len(scene.live()) == 2, "both were loaded")
    scene.store.wait_for(scene.store.submit(model="two"))
    one.fault = "its files are gone"
    job = scene.store.submit(model="one")
    wait_until(lambda: scene.live() == {("two", None)}, "it is not served")
    one.fault = None
    scene.pass_time(REFUSED_SECONDS)
    scene.store.wait_for(job)
    assert scene.live() == {("one", None), ("two", None)}


def test_a_loading_that_hangs_is_noticed(scene: Scene) -> None:
    stuck, ended = threading.Event(), threading.Event()
    scene.watchdog.close()
    scene.watchdog = Watchdog(0.05, stuck.set)
    scene.model("one", hangs=ended)
    scene.start(budget_bytes=15)
    assert stuck.wait(30)
    ended.set()


def test_what_a_failed_loading_leaves_is_gone_before_the_next(scene: Scene) -> None:
    """Even if it is part of a circle."""
    left: list[weakref.ref[Weights]] = []

    class Weights:
        """What a model holds that was loaded in part."""

    class Failing(MadeUpModel):
        def load(self, taken_bytes: int, check: Callable[[], None]) -> Loaded:
            error = CheckpointError("its tensors do not fit")
            weights = Weights()
            weights.error, left[:] = error, [weakref.ref(weights)]  # type: ignore[attr-defined]
            raise error  # whose traceback has this frame

    class After(MadeUpModel):
        def load(self, taken_bytes: int, check: Callable[[], None]) -> Loaded:
            found.extend(one() for one in left)
            return super().load(taken_bytes, check)

    found: list[Weights | None] = []
    scene.models += [made(replace(CARD, name=name), scene.clock) for name, made in (("a", Failing), ("b", After))]
    gc.disable()  # It would come by itself sooner or later.
    try:
        scene.start(budget_bytes=15)
        scene.store.wait_for(scene.store.submit(model="b"))
    finally:
        gc.enable()
    assert found == [None]


def test_a_worker_that_loads_stops_at_once(scene: Scene) -> None:
    scene.model("one")
    scene.model("two", is_slow=True)
    scene.start(budget_bytes=20)
    wait_until(lambda: scene.live() == {("one", None)}, "the first is loaded")
    scene.stop()
    assert scene.live() == set()


def test_a_model_that_always_fails_costs_the_others_few_places(scene: Scene) -> None:
    """It could be loaded only to the place of another, so each trial costs that one a loading."""
    right = scene.model("right")
    broken = scene.model("broken", fault="its tensors do not fit")
    scene.start(budget_bytes=15)
    for _ in range(100):
        scene.pass_time(60.0)
        scene.store.wait_for(scene.store.submit(model="right"))
    assert broken.loaded == 0
    assert right.loaded <= 12


def test_other_weights_under_the_same_version_are_refused(scene: Scene) -> None:
    one, two = scene.model("one"), scene.model("two")
    scene.start(budget_bytes=15)
    wait_until(lambda: len(scene.live()) == 2, "both were loaded")
    one.weights = "others"
    scene.store.wait_for(scene.store.submit(model="two"))
    job = scene.store.submit(model="one")
    wait_until(lambda: one.loaded == 2, "its loading is tried")
    scene.store.wait_for(scene.store.submit(model="two"))
    assert scene.store.scored_items(job) == 0
    one.weights = "weights"
    scene.pass_time(MOST_REFUSED_SECONDS)
    scene.store.wait_for(job)
    assert two.loaded >= 2


def test_models_keep_to_the_memory_if_one_takes_more_than_expected(scene: Scene) -> None:
    scene.model("one")
    scene.model("two", nbytes=15, expected=5)
    rota = scene.start(budget_bytes=20)
    for name in ("one", "two", "one", "two"):
        scene.store.wait_for(scene.store.submit(model=name))
        assert sum(seat.nbytes for seat in rota._loaded()) <= 20
