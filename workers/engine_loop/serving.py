"""A scoring worker around an engine that is loaded: the loop in a thread, the bell in the main one, and an orderly end.

The bell listens in the main thread, where Celery is at home. It starts the loop before it connects to anything, and the
loop never depends on it: without Redis, work is found by looking for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from bell.interfaces import Bell, Listener
from bell.local import LocalBell
from bell.redis_bell import RedisBell
from bell.redis_listener import RedisListener
from jobs.store.database import Database
from jobs.store.records import WorkerRecord
from settings.bell import BellSettings
from settings.engine import EngineSettings
from settings.jobs import StoreSettings
from workers.engine_loop.garbage import settle
from workers.engine_loop.heartbeat import Presence
from workers.engine_loop.loop import Pace, ScoringEngine, ScoringLoop
from workers.engine_loop.metrics import WorkerMetrics
from workers.engine_loop.watchdog import Progress
from workers.stopping import BROKEN, STOPPED, STUCK, Stopping, end_process
from workers.sweeping import keep_sweeping

NO_PROGRESS = "no progress: the engine hangs, or the database does"

LISTENER_SECONDS = 1.0
"""How long the listener may take to end: it holds nothing that is worth a longer wait."""

log = structlog.stdlib.get_logger("worker")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The slices a scoring worker needs."""

    store: StoreSettings
    bell: BellSettings
    engine: EngineSettings


def serve(
    engine: ScoringEngine,
    worker: WorkerRecord,
    settings: WorkerSettings,
    stopping: Stopping,
    prefix_counts: Callable[[], Mapping[str, int]] | None = None,
) -> int:
    """Work until stopped. Returns the exit status. prefix_counts: see
    :meth:`workers.engine_loop.metrics.WorkerMetrics.serve`."""
    database = Database.open(settings.store)
    progress = Progress(settings.engine.step_timeout_seconds, lambda: end_process(STUCK, NO_PROGRESS))
    bell, listener = _open_bell(settings.bell, worker.card.name, lambda: loop.wake())
    pace = Pace(settings.engine.claim_seconds, settings.engine.poll_seconds)
    metrics = WorkerMetrics()
    if settings.engine.worker_metrics_port is not None:
        metrics.serve(settings.engine.worker_metrics_host, settings.engine.worker_metrics_port, prefix_counts)
    loop = ScoringLoop(database, bell, engine, progress, pace, worker_id=worker.id, card=worker.card, metrics=metrics)
    stopping.calls(loop.stop)
    status = BROKEN

    def work() -> None:
        nonlocal status
        try:
            with Presence(database, worker, lambda: loop.tokens_per_second) as presence:
                if presence.make_known(loop.stopping):
                    log.info("ready", worker_id=worker.id, model=worker.card.name)
                keep_sweeping(database, bell, settings.engine.sweep_seconds)
                settle()
                loop.run()
            status = STOPPED
        except Exception:
            log.exception("the scoring loop failed")
        finally:
            log.info("stopped")
            # A listener whose Redis has stopped answering would take its time.
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


def _open_bell(settings: BellSettings, model: str, on_ring: Callable[[], None]) -> tuple[Bell, Listener]:
    if settings.bell_socket is not None:
        bell = LocalBell(settings.bell_socket, model, on_ring)
        return bell, bell
    redis_bell = RedisBell(settings.redis_url, settings.bell_prefix)
    return redis_bell, RedisListener(settings.redis_url, settings.bell_prefix, model, on_ring)
