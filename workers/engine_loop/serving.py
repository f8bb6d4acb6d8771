"""Runs a scoring worker whose engine is loaded: the loop in a thread, the listener in the main thread.

Celery, which is the listener with Redis, has to run in the main thread. The listener starts the loop before it connects
to Redis, and the loop does not depend on it: without Redis, the loop finds work by polling.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from bell.opening import open_worker_bell
from jobs.store.database import Database
from jobs.store.provenance import Provenance
from jobs.store.records import WorkerRecord
from settings.bell import BellSettings
from settings.store import StoreSettings
from settings.worker import WorkerSettings
from telemetry.tracing import Tracer
from workers.engine_loop.garbage import freeze
from workers.engine_loop.heartbeat import Heartbeat
from workers.engine_loop.loop import LoopTiming, ScoringEngine, ScoringLoop
from workers.engine_loop.metrics import WorkerMetrics
from workers.engine_loop.watchdog import Watchdog
from workers.stopping import BROKEN, STOPPED, STUCK, StopSignals, end_process
from workers.sweeping import start_sweeping

NO_PROGRESS = "no progress: the engine hangs, or the database does"
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
) -> int:
    """Score until stopped. Returns the exit status.

    prefix_counts, estimate_ratio: see WorkerMetrics.serve. provenance, tracer: see ScoringLoop. measured_ratio: see
    Heartbeat.
    """
    database = Database.open(settings.store)
    watchdog = Watchdog(settings.worker.step_timeout_seconds, lambda: end_process(STUCK, NO_PROGRESS))
    bell, listener = open_worker_bell(settings.bell, worker.card.name, lambda: loop.wake())
    timing = LoopTiming(settings.worker.claim_seconds, settings.worker.poll_seconds)
    metrics = WorkerMetrics()
    if settings.worker.worker_metrics_port is not None:
        host, port = settings.worker.worker_metrics_host, settings.worker.worker_metrics_port
        metrics.serve(host, port, prefix_counts, estimate_ratio)
    loop = ScoringLoop(
        database,
        bell,
        engine,
        watchdog,
        timing,
        worker_id=worker.id,
        card=worker.card,
        metrics=metrics,
        provenance=provenance,
        tracer=tracer,
    )
    stopping.on_stop(loop.stop)
    status = BROKEN

    def work() -> None:
        nonlocal status
        try:
            with Heartbeat(database, worker, lambda: loop.tokens_per_second, measured_ratio) as heartbeat:
                if heartbeat.register(loop.stopping):
                    log.info("ready", worker_id=worker.id, model=worker.card.name)
                start_sweeping(database, bell, settings.store.sweep_seconds)
                freeze()
                loop.run()
            status = STOPPED
        except Exception:
            log.exception("the scoring loop failed")
        finally:
            log.info("stopped")
            if tracer is not None:
                tracer.close()
            # A listener whose Redis no longer answers would take long to stop.
            end = threading.Timer(LISTENER_SECONDS, os._exit, (status,))
            end.daemon = True
            end.start()
            listener.stop()

    scoring = threading.Thread(target=work, name="scoring")
    listener.run(scoring.start)
    scoring.join()
    bell.close()
    database.close()
    return status
