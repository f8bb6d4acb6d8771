"""One worker serves several models: on a real store, with made-up engines and a clock in the hands of the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from scoring.layout import GroupWork, ScoredChunk
from scoring.options import Priority
from tests.services import wait_until
from tests.workers.engine_loop.made_up_models import LOAD_SECONDS, Scene
from tests.workers.engines import MadeUpEngine
from workers.engine_loop.claimer import LoopTiming

CHUNK_SECONDS = 1.0
MEASURED_SECONDS = 200.0


def test_models_that_fit_are_loaded_once_and_all_score(scene: Scene) -> None:
    one, two = scene.model("one"), scene.model("two")
    scene.start(budget_bytes=20)
    jobs = [scene.store.submit(model=name, token=n) for n in range(5) for name in ("one", "two")]
    for job in jobs:
        scene.store.wait_for(job)
    assert (one.loaded, two.loaded) == (1, 1)
    assert scene.live() == {("one", None), ("two", None)}


def test_models_that_do_not_fit_take_turns_as_work_comes(scene: Scene) -> None:
    """With nothing to do for the one, the other takes its place at once."""
    one, two = scene.model("one"), scene.model("two")
    scene.start(budget_bytes=15)
    wait_until(lambda: scene.live() == {("one", None), ("two", None)}, "both were loaded, and are registered")
    for _ in range(2):
        scene.store.wait_for(scene.store.submit(model="one"))
        scene.store.wait_for(scene.store.submit(model="two"))
    assert (one.loaded, two.loaded) == (3, 3)


def test_a_backlog_of_both_does_not_keep_the_worker_loading(scene: Scene) -> None:
    """Each has its turn, of ten loadings, and both get the same time."""
    seconds: Counter[str] = Counter()

    class Slow(MadeUpEngine):
        """Each chunk takes a part of a second."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def score(
            self,
            groups: Sequence[GroupWork],
            on_step: Callable[[], None],
            on_phase: Callable[[str, float], None] | None = None,
        ) -> Iterator[ScoredChunk]:
            for scored in super().score(groups, on_step, on_phase):
                scene.clock.now += CHUNK_SECONDS
                seconds[self._name] += CHUNK_SECONDS  # type: ignore[assignment]
                yield scored
            if seconds.total() >= MEASURED_SECONDS:
                assert scene.rota is not None
                scene.rota.stopping.set()

    for name in ("one", "two"):
        scene.model(name, engine=Slow(name))
        for n in range(10):
            scene.store.submit(model=name, token=n, prefix=(n, 1), chunks=20)
    rota = scene.start(budget_bytes=15, timing=LoopTiming(claim_seconds=0.0001, poll_seconds=0.05))
    wait_until(rota.stopping.is_set, "much is scored", 240)
    turn = 10 * LOAD_SECONDS
    assert rota.loadings <= MEASURED_SECONDS / turn + 2
    assert min(seconds.values()) >= 0.9 * MEASURED_SECONDS / 2 - turn


def test_a_caller_of_the_other_model_waits_for_one_loading(scene: Scene) -> None:
    """And not for the whole turn of a model with much work."""
    one, two = scene.model("one"), scene.model("two")
    taken: list[int] = []  # batches of the other model, when the call is scored

    class Busy(MadeUpEngine):
        """Each claim takes a second, until a call has come and for a while after it."""

        def score(
            self,
            groups: Sequence[GroupWork],
            on_step: Callable[[], None],
            on_phase: Callable[[str, float], None] | None = None,
        ) -> Iterator[ScoredChunk]:
            scene.clock.now += 1.0
            if len(self.batches) == 3:
                calls.append(scene.store.submit(model="two", priority=Priority.INTERACTIVE))
            return super().score(groups, on_step, on_phase)

    def answered() -> None:
        taken.append(len(one.engine.batches))

    calls: list[str] = []
    one.engine, two.engine.before = Busy(), {0: answered}
    for n in range(40):
        scene.store.submit(model="one", token=n, prefix=(n, 3), chunks=10)
    scene.start(budget_bytes=15, timing=LoopTiming(claim_seconds=0.0001, poll_seconds=0.05))
    wait_until(lambda: calls, "the call was sent")
    scene.store.wait_for(calls[0])
    assert taken[0] <= 3 + LOAD_SECONDS + 1, "it came after three batches, each of a second"


def test_a_call_of_one_model_is_scored_between_the_steps_of_another(scene: Scene) -> None:
    one, two = scene.model("one"), scene.model("two")
    calls: list[str] = []

    def call() -> None:
        calls.append(scene.store.submit(model="two", priority=Priority.INTERACTIVE, token=50))
        assert scene.rota is not None
        scene.rota.wake()

    def check() -> None:
        assert two.engine.steps == [50]

    one.engine.before = {1: call, 3: check}
    scene.start(budget_bytes=20)
    wait_until(lambda: len(scene.live()) == 2, "both are loaded")
    scene.store.wait_for(scene.store.submit(model="one", chunks=6))
    assert len(one.engine.steps) == 6
    scene.store.wait_for(calls[0])


def test_a_model_that_is_served_no_more_leaves_when_its_work_is_done(scene: Scene) -> None:
    scene.model("one"), scene.model("two")
    scene.start(budget_bytes=20)
    wait_until(lambda: len(scene.live()) == 2, "both are loaded")
    del scene.models[0]
    scene.pass_time_until({("two", None)}, "it has left")


def test_a_rota_that_stops_leaves_no_row(scene: Scene) -> None:
    scene.model("one"), scene.model("two")
    scene.start(budget_bytes=20)
    wait_until(lambda: len(scene.live()) == 2, "both are loaded")
    scene.stop()
    assert scene.live() == set()
