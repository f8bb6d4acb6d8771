"""A rota in a thread, with made-up models and a clock in the hands of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from checkpoints.card import ModelCard
from checkpoints.files import CheckpointError
from jobs.queue.worker_registry import live_workers
from jobs.store.provenance import Provenance
from jobs.store.records import WorkerRecord
from tests.services import wait_until
from tests.workers.conftest import CARD, EAGER, RecordingBell, Store
from tests.workers.engines import MadeUpEngine
from workers.engine_loop.claimer import LoopTiming
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.loop import ScoringLoop
from workers.engine_loop.models.rota import (
    GRACE_SECONDS,
    Rota,
    RotaParts,
)
from workers.engine_loop.models.wanted import Loaded
from workers.engine_loop.watchdog import Watchdog

LOAD_SECONDS = 2.0


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
