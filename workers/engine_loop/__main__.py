"""The process of a scoring worker, which owns a device: ``python -m workers.engine_loop``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from jobs.store.database import Database
from settings.bell import BellSettings
from settings.engine import EngineSettings
from settings.errors.endings import Ending, in_one_line
from settings.errors.mistakes import SettingError, setting_error
from settings.logs import configure_logs
from settings.scoring import ScoringSettings
from settings.store import StoreSettings
from settings.telemetry import TracingError, TracingSettings
from settings.unknown import warn_of_unknown_variables
from settings.worker import WorkerSettings
from telemetry.opening import open_tracer
from workers.engine_loop.devices import DeviceError, show_only, take
from workers.engine_loop.models.wanted import Wanted
from workers.engine_loop.serving import WorkerSlices, serve, serve_several
from workers.stopping import BROKEN, StopSignals, end_process

if TYPE_CHECKING:
    from model.platforms import Platform
    from telemetry.tracing import Tracer

log = structlog.stdlib.get_logger("worker")


def main() -> int:
    """Score until stopped. Returns 1, with one line in the log, if the model can't be loaded or is computed wrongly."""
    configure_logs()
    warn_of_unknown_variables(os.environ)
    # Otherwise transformers advises to install PyTorch, which is not needed, in log lines that are not JSON.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    stopping = StopSignals()
    # These imports take seconds. They come after the signals are handled, so that the process can be stopped meanwhile.
    from checkpoints.files import CheckpointError
    from model.cpu_threads import choose_cpu_threads
    from workers.engine_loop.models.loading import compile_ahead, describe, load

    try:
        scoring, engine_settings = ScoringSettings(), EngineSettings()
        settings = WorkerSlices(StoreSettings(), BellSettings(), WorkerSettings())
        tracer = open_tracer(TracingSettings.read(), "worker")
        Database.open(settings.store).close()  # its URL is checked before the model is loaded
        if settings.worker.worker_models:
            return _serve_several(scoring, engine_settings, settings, stopping, tracer)
        described = describe(scoring)
        choose_cpu_threads(engine_settings.cpu_threads, described.config, os.environ)
        platform, numbers, _held = _take_devices(engine_settings)
        loaded = load(described, engine_settings, platform, settings.worker.claim_seconds, numbers)
    except CheckpointError as error:
        log.error("can't start", reason=str(setting_error("model", scoring.model, in_one_line(error))))
        return Ending.MISCONFIGURED
    except (SettingError, TracingError) as error:
        log.error("can't start", reason=in_one_line(error))
        return Ending.MISCONFIGURED
    except DeviceError as error:  # it may be there, or free, when the process is started again
        log.error("can't start", reason=in_one_line(error))
        return Ending.FAILED
    except Exception as error:
        return _fail(error, engine_settings)
    engine = loaded.engine
    if engine_settings.multi_item_enable_startup_warmup:
        compile_ahead(engine)
    return serve(
        engine,
        loaded.worker,
        settings,
        stopping,
        engine.prefix_cache.counts,
        lambda: engine.estimate_ratio,
        loaded.provenance,
        lambda: engine.measured_estimate_ratio,
        tracer,
        claims_ahead=engine.runs_ahead,
    )


def _take_devices(settings: EngineSettings) -> tuple[Platform, Sequence[int], object]:
    """Return the devices of this worker as a platform, their numbers, and what holds them. Raises DeviceError."""
    if settings.devices:
        show_only(settings.devices, os.environ)
    taken, held = take(settings.devices)

    from model.chips.mesh import Chips
    from model.platforms import Platform

    platform = Platform.of(taken[0], chips=Chips.of(taken) if len(taken) > 1 else None)
    return platform, settings.devices or [device.id for device in taken], held


def _serve_several(
    scoring: ScoringSettings,
    engine_settings: EngineSettings,
    settings: WorkerSlices,
    stopping: StopSignals,
    tracer: Tracer | None,
) -> int:
    """Serve models of the catalogue. Raises DeviceError."""
    from model.cpu_threads import choose_cpu_threads
    from workers.engine_loop.models.supply import Device, Supply

    # Which models there will be is not known, so a number of threads is chosen only if the settings name one.
    choose_cpu_threads(engine_settings.cpu_threads, None, os.environ)
    platform, numbers, _held = _take_devices(engine_settings)
    device = Device(platform, numbers, engine_settings, settings.worker.claim_seconds)
    names = settings.worker.worker_models

    def supply_of(database: Database) -> Callable[[], Sequence[Wanted]]:
        return Supply(names, database, scoring, device, {}).read

    wanted = settings.worker.worker_models_bytes
    memory = device.budget(wanted), device.largest(wanted)
    log.info("serving several models", models=names, budget_bytes=memory[0])
    return serve_several(supply_of, names, memory, settings, stopping, tracer)


def _fail(error: Exception, settings: EngineSettings) -> int:
    """Return the exit code of a worker whose device computes wrongly or has too little memory.

    Raises any other error again.
    """
    from model.checks.known_answer import KnownAnswerError

    if isinstance(error, KnownAnswerError):
        log.error("can't start", reason=str(error))
        return BROKEN
    if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
        raise error
    budget = "unset" if settings.prefix_cache_bytes is None else settings.prefix_cache_bytes
    log.error(
        "can't start",
        reason="there is too little memory for the model and for cached queries: lower SCORELINE_PREFIX_CACHE_BYTES "
        f"(it is {budget}) or SCORELINE_STEP_TOKENS, set SCORELINE_DTYPE to bfloat16, or serve a smaller model: "
        + in_one_line(error),
    )
    return Ending.FAILED


if __name__ == "__main__":
    end_process(main())
