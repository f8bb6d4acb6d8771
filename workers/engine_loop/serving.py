"""Runs a scoring worker whose engine is loaded: the loop in a thread, the listener in the main thread.

Celery, which is the listener with Redis, has to run in the main thread. The listener starts the loop before it connects
to Redis, and the loop does not depend on it: without Redis, the loop finds work by polling.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from bell.interfaces import BellConnection, RingListener
from bell.opening import open_worker_bell
from jobs.store.database import Database
from jobs.store.provenance import Provenance
from jobs.store.records import WorkerRecord
from settings.bell import BellSettings
from settings.store import StoreSettings
from settings.worker import WorkerSettings
from telemetry.tracing import Tracer
from workers.database_outage import wait_for_database
from workers.engine_loop.claimer import LoopTiming
from workers.engine_loop.garbage import freeze
from workers.engine_loop.heartbeat import Heartbeat
from workers.engine_loop.loop import ScoringEngine, ScoringLoop
from workers.engine_loop.measuring.metrics import WorkerMetrics
from workers.engine_loop.models.rota import Rota, RotaParts
from workers.engine_loop.models.wanted import Loaded, Wanted
from workers.engine_loop.watchdog import Watchdog
from workers.stopping import BROKEN, STOPPED, STUCK, StopSignals, end_process
from workers.sweeping import start_sweeping

NO_PROGRESS = "no progress: the engine hangs, or the database does"
LOADING_HANGS = "no progress: the loading of a model hangs"
LOADING_PATIENCE = 3.0
"""How many times as long as a step a part of a loading may take. On a slow host, a large model is compared with NumPy
for minutes."""
LISTENER_SECONDS = 1.0  # how long the listener may take to stop; it holds nothing that is worth a longer wait

log = structlog.stdlib.get_logger("worker")


@dataclass(frozen=True, slots=True)
class WorkerSlices:
    """The slices of the settings that a scoring worker needs."""

    store: StoreSettings
    bell: BellSettings
    worker: WorkerSettings


def serve(
    engine: ScoringEngine,
    worker: WorkerRecord,
    settings: WorkerSlices,
    stopping: StopSignals,
    prefix_counts: Callable[[], Mapping[str, int]] | None = None,
    estimate_ratio: Callable[[], float] | None = None,
    provenance: Provenance | None = None,
    measured_ratio: Callable[[], float | None] = lambda: None,
    tracer: Tracer | None = None,
    *,
    claims_ahead: bool = False,
) -> int:
    """Score with one engine until stopped. Returns the exit status.

    prefix_counts, estimate_ratio: see WorkerMetrics.serve. provenance, tracer, claims_ahead: see ScoringLoop.
    measured_ratio: see Heartbeat.
    """
    process = _Process.open(settings, [worker.card.name], tracer, lambda: loop.wake())
    process.offer_metrics(prefix_counts, estimate_ratio)
    loop = process.make_loop(engine, worker, provenance, claims_ahead=claims_ahead)

    def run() -> None:
        with Heartbeat(process.database, worker, lambda: loop.tokens_per_second, measured_ratio) as heartbeat:
            if heartbeat.register(loop.stopping):
                log.info("ready", worker_id=worker.id, model=worker.card.name)
            process.start_sweeping()
            freeze()
            loop.run()

    stopping.on_stop(loop.stop)
    return process.run(run)


def serve_several(
    supply_of: Callable[[Database], Callable[[], Sequence[Wanted]]],
    names: Sequence[str],
    memory: tuple[int, int],
    settings: WorkerSlices,
    stopping: StopSignals,
    tracer: Tracer | None = None,
) -> int:
    """Score with several models until stopped. Returns the exit status.

    supply_of: makes what reads which models are to be served; names: theirs, for rings. memory: budget_bytes and
    largest_bytes of RotaParts.
    """
    process = _Process.open(settings, names, tracer, lambda: rota.wake())

    def make_loop(loaded: Loaded, beside: Callable[[], Sequence[ScoringLoop]]) -> ScoringLoop:
        return process.make_loop(loaded.engine, loaded.worker, loaded.provenance, rota.stopping, beside)

    patience = LOADING_PATIENCE * settings.worker.step_timeout_seconds
    watchdog = Watchdog(patience, lambda: end_process(STUCK, LOADING_HANGS))
    parts = RotaParts(process.database, make_loop, settings.worker.poll_seconds, *memory, watchdog)
    rota = Rota(parts, supply_of(process.database))
    process.offer_metrics(rota.prefix_counts, None)

    def run() -> None:
        if wait_for_database(process.database, rota.stopping, log):
            process.start_sweeping()
            rota.run()

    stopping.on_stop(rota.stop)
    return process.run(run)


@dataclass(frozen=True, slots=True, eq=False)
class _Process:
    """What a worker's process has once, however many models it serves."""

    settings: WorkerSlices
    database: Database
    watchdog: Watchdog
    bell: BellConnection
    listener: RingListener
    metrics: WorkerMetrics
    tracer: Tracer | None

    @classmethod
    def open(
        cls, settings: WorkerSlices, models: Sequence[str], tracer: Tracer | None, wake: Callable[[], None]
    ) -> _Process:
        """Open what the process uses. models: whose rings wake it."""
        watchdog = Watchdog(settings.worker.step_timeout_seconds, lambda: end_process(STUCK, NO_PROGRESS))
        bell, listener = open_worker_bell(settings.bell, models, wake)
        return cls(settings, Database.open(settings.store), watchdog, bell, listener, WorkerMetrics(), tracer)

    def offer_metrics(
        self, prefix_counts: Callable[[], Mapping[str, int]] | None, estimate_ratio: Callable[[], float] | None
    ) -> None:
        """Offer the metrics of the process, if the settings name a port."""
        worker = self.settings.worker
        if worker.worker_metrics_port is not None:
            self.metrics.serve(worker.worker_metrics_host, worker.worker_metrics_port, prefix_counts, estimate_ratio)

    def make_loop(
        self,
        engine: ScoringEngine,
        worker: WorkerRecord,
        provenance: Provenance | None,
        stopping: threading.Event | None = None,
        beside: Callable[[], Sequence[ScoringLoop]] = lambda: (),
        *,
        claims_ahead: bool = False,
    ) -> ScoringLoop:
        """Return the loop of one model. See ScoringLoop."""
        return ScoringLoop(
            self.database,
            self.bell,
            engine,
            self.watchdog,
            LoopTiming(self.settings.worker.claim_seconds, self.settings.worker.poll_seconds),
            worker_id=worker.id,
            card=worker.card,
            metrics=self.metrics,
            provenance=provenance,
            tracer=self.tracer,
            stopping=stopping,
            beside=beside,
            provenance_id=worker.provenance_id,
            claims_ahead=claims_ahead,
        )

    def start_sweeping(self) -> None:
        """Sweep the store beside scoring."""
        start_sweeping(self.database, self.bell, self.settings.store.sweep_seconds)

    def run(self, score: Callable[[], None]) -> int:
        """Score in a thread while this one listens, until ``score`` returns. Returns the exit status."""
        status = BROKEN

        def work() -> None:
            nonlocal status
            try:
                score()
                status = STOPPED
            except Exception:
                log.exception("the scoring loop failed")
            finally:
                log.info("stopped")
                if self.tracer is not None:
                    self.tracer.close()
                # A listener whose Redis no longer answers would take long to stop.
                end = threading.Timer(LISTENER_SECONDS, os._exit, (status,))
                end.daemon = True
                end.start()
                self.listener.stop()

        scoring = threading.Thread(target=work, name="scoring")
        self.listener.run(scoring.start)
        scoring.join()
        self.bell.close()
        self.database.close()
        return status
