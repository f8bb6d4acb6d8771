"""One worker serves several models: on a real store, with made-up engines and a clock in the hands of the test."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from checkpoints.card import ModelCard
from checkpoints.files import CheckpointError
from jobs.queue.worker_registry import live_workers
from jobs.store.provenance import Provenance
from jobs.store.records import WorkerRecord
from scoring.layout import GroupWork, ScoredChunk
from scoring.options import Priority
from tests.services import wait_until
from tests.workers.conftest import CARD, EAGER, RecordingBell, Store
from tests.workers.engines import MadeUpEngine
from workers.engine_loop.claimer import LoopTiming
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.loop import ScoringLoop
from workers.engine_loop.models.rota import (
    FOLLOWING_SECONDS,
    GRACE_SECONDS,
    MOST_REFUSED_SECONDS,
    REFUSED_SECONDS,
    Rota,
    RotaParts,
)
from workers.engine_loop.models.wanted import Loaded
from workers.engine_loop.watchdog import Watchdog

LOAD_SECONDS = 2.0
CHUNK_SECONDS = 1.0
MEASURED_SECONDS = 200.0


@dataclass(eq=False)
class HandClock:
    """A clock that stands still until somebody moves it."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class MadeUpLoaded:
    """A loaded model."""

    engine: MadeUpEngine
    worker: WorkerRecord
    nbytes: int
    provenance: Provenance | None = None
    prefix_counts: Mapping[str, int] = field(default_factory=dict)
    measured_ratio: float | None = None


@dataclass(eq=False)
class MadeUpModel:
    """A model that can be loaded, and what was done with it."""

    card: ModelCard
    clock: HandClock
    nbytes: int = 10
    engine: MadeUpEngine = field(default_factory=MadeUpEngine)
    fault: str | None = None
    weights: str = "weights"
    expected: int = 0  # what it is expected to take, if that is not what it takes
    loaded: int = 0  # times
    is_slow: bool = False  # whether its loading does not end, unless the worker is told to stop
    hangs: threading.Event | None = None  # until when its loading says nothing

    def expected_bytes(self) -> int:
        return self.expected or self.nbytes

    def load(self, taken_bytes: int, check: Callable[[], None]) -> Loaded:
        if self.hangs is not None:
            self.hangs.wait(30)
        while self.is_slow:
            check()
            time.sleep(0.01)
        if self.fault is not None:
            raise CheckpointError(self.fault)
        self.loaded += 1
        self.clock.now += LOAD_SECONDS
        record = WorkerRecord(new_worker_id(), self.card, self.weights, "none", "float32")
        return MadeUpLoaded(self.engine, record, self.nbytes)


class Scene:
    """A rota in a thread."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = HandClock()
        self.models: list[MadeUpModel] = []
        self.watchdog = Watchdog(30.0, lambda: None)
        self.rota: Rota | None = None
        self._thread: threading.Thread | None = None

    def model(self, name: str, version: int | None = None, **fields: object) -> MadeUpModel:
        made = MadeUpModel(replace(CARD, name=name, version=version), self.clock, **fields)  # type: ignore[arg-type]
        self.models.append(made)
        return made

    def start(self, budget_bytes: int, timing: LoopTiming = EAGER) -> Rota:
        """Serve the models, with so much memory."""
        rota: Rota

        def make_loop(loaded: Loaded, beside: Callable[[], Sequence[ScoringLoop]]) -> ScoringLoop:
            return ScoringLoop(
                self.store.database,
                RecordingBell(),
                loaded.engine,
                self.watchdog,
                timing,
                worker_id=loaded.worker.id,
                card=loaded.worker.card,
                stopping=rota.stopping,
                beside=beside,
            )

        parts = RotaParts(self.store.database, make_loop, 0.01, budget_bytes, budget_bytes, self.watchdog)
        self.rota = rota = Rota(parts, lambda: list(self.models), self.clock)
        self._thread = threading.Thread(target=rota.run, daemon=True)
        self._thread.start()
        return rota

    def live(self) -> set[tuple[str, int | None]]:
        """The models of the worker's rows."""
        return {(one.card.name, one.card.version) for one in live_workers(self.store.database, 60.0)}

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        assert self.rota is not None
        self.rota.wake()

    def pass_time_until(self, live: set[tuple[str, int | None]], what: str) -> None:
        """Let time pass until these models are live. The rota may look in the middle of anything."""

        def passed() -> bool:
            self.pass_time(GRACE_SECONDS)
            return self.live() == live

        wait_until(passed, what)

    def stop(self) -> None:
        if self.rota is not None:
            self.rota.stop()
        if self._thread is not None:
            self._thread.join(30)
            assert not self._thread.is_alive()
        self.watchdog.close()


@pytest.fixture
def scene(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # All that was imported and collected stays frozen: to go through it takes a second each time.
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    scene = Scene(store)
    yield scene
    scene.stop()


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
