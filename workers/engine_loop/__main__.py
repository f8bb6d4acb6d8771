"""The process of a scoring worker, which owns a device: ``python -m workers.engine_loop``."""

from __future__ import annotations

import os
import threading
from importlib.metadata import version
from typing import TYPE_CHECKING

import structlog

from jobs.store.database import Database
from jobs.store.provenance import Provenance
from jobs.store.records import WorkerRecord
from settings.bell import BellSettings
from settings.engine import EngineSettings
from settings.errors.endings import Ending, in_one_line
from settings.errors.mistakes import SettingError, setting_error
from settings.logs import configure_logs
from settings.scoring import ScoringSettings
from settings.store import StoreSettings
from settings.telemetry import TracingError, TracingSettings
from settings.unknown import warn_of_unknown_variables
from settings.version import VERSION
from settings.worker import WorkerSettings
from telemetry.opening import open_tracer
from workers.engine_loop.devices import DeviceError, show_only, take
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.provenance import processor_name
from workers.engine_loop.serving import WorkerSlices, serve
from workers.stopping import BROKEN, StopSignals, end_process

if TYPE_CHECKING:
    from model.engine import Engine

log = structlog.stdlib.get_logger("worker")


def main() -> int:
    """Score until stopped. Returns 1, with one line in the log, if the model can't be loaded or is computed wrongly."""
    configure_logs()
    warn_of_unknown_variables(os.environ)
    # Otherwise transformers advises to install PyTorch, which is not needed, in log lines that are not JSON.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    stopping = StopSignals()
    # These imports take seconds. They come after the signals are handled, so that the process can be stopped meanwhile.
    from checkpoints.adapter_folder import AdapterFolder
    from checkpoints.files import CheckpointError
    from checkpoints.progress import ByteProgress
    from checkpoints.source import Contents, find_adapter, find_checkpoint, name_of_adapter
    from model.architecture.config import DecoderConfig
    from model.cpu_threads import choose_cpu_threads
    from scoring.served_checkpoint import ServedCheckpoint

    try:
        scoring, engine_settings = ScoringSettings(), EngineSettings()
        settings = WorkerSlices(StoreSettings(), BellSettings(), WorkerSettings())
        tracer = open_tracer(TracingSettings.read(), "worker")
        Database.open(settings.store).close()  # its URL is checked before the model is loaded
        checkpoint = find_checkpoint(scoring.model, scoring.model_revision, Contents.WEIGHTS)
        try:
            adapter = find_adapter(scoring.model, checkpoint, scoring.adapters)
        except CheckpointError as error:
            if scoring.adapters is None:
                raise
            raise setting_error("adapters", scoring.adapters, in_one_line(error)) from error
        merged = scoring.adapters or (adapter and adapter.name)
        log.info("loading", model=scoring.model, commit=checkpoint.commit, adapter=merged)
        # A configuration that is not supported is refused here, before anything large is imported or read.
        config = DecoderConfig.from_directory(checkpoint.directory)
        choose_cpu_threads(engine_settings.cpu_threads, config, os.environ)
        card = ServedCheckpoint.load(
            checkpoint,
            name=scoring.model_name or name_of_adapter(scoring.adapters),
            delimiter=scoring.multi_item_scoring_delimiter,
            context_length=scoring.context_length,
        ).card
        if engine_settings.devices:
            show_only(engine_settings.devices, os.environ)
        taken, _held = take(engine_settings.devices)

        from model.checks.known_answer import KnownAnswerError
        from model.chips.mesh import Chips
        from model.engine import Engine
        from model.platforms import Platform
        from scoring.planning.description import describe

        loading = ByteProgress(
            lambda: None, lambda done, total: log.info("loading", step=done, steps=total, unit="bytes")
        )
        platform = Platform.of(taken[0], chips=Chips.of(taken) if len(taken) > 1 else None)
        engine = Engine.load(
            checkpoint.directory,
            engine_settings,
            card,
            platform,
            loading.advance,
            scoring.multi_item_algorithm,
            adapter,
            None if scoring.adapter_folder is None else AdapterFolder(scoring.adapter_folder),
        )
        numbers = engine_settings.devices or [device.id for device in taken]
        number = numbers[0] if len(numbers) == 1 else numbers
        log.info("loaded", device=engine.device, number=number, dtype=engine.dtype)
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
        return _fail_for_memory(error, engine_settings)
    # The programs of whole steps can only be checked together, so they are compiled before anything is served.
    if engine_settings.multi_item_enable_startup_warmup or platform.whole_steps:
        try:
            engine.warm_up(lambda done, total, what: log.info("compiling", step=done, steps=total, program=what))
        except KnownAnswerError as error:
            log.error("can't start", reason=str(error))
            return BROKEN
        except Exception as error:
            return _fail_for_memory(error, engine_settings)
    if engine_settings.multi_item_enable_startup_warmup:
        threading.Thread(target=_warm_up_rest, args=(engine,), name="compiling", daemon=True).start()
    worker = WorkerRecord(
        new_worker_id(),
        card,
        engine.weights_fingerprint,
        engine.device,
        engine.dtype,
        planning={"planner": describe(engine.planner), "claim_seconds": settings.worker.claim_seconds},
    )
    provenance = Provenance(
        model=card.name,
        revision=checkpoint.commit,
        weights_fingerprint=engine.weights_fingerprint,
        tokenizer_fingerprint=card.tokenizer_fingerprint,
        dtype=engine.dtype,
        device=engine.device,
        processor=processor_name() if platform.name == "cpu" else None,
        step_tokens=platform.step_tokens(engine_settings.step_tokens),
        batch_invariant=engine_settings.batch_invariant,
        versions={"scoreline": VERSION, "jax": version("jax"), "jaxlib": version("jaxlib")},
    )
    counts = engine.prefix_cache.counts
    return serve(
        engine,
        worker,
        settings,
        stopping,
        counts,
        lambda: engine.estimate_ratio,
        provenance,
        lambda: engine.measured_estimate_ratio,
        tracer,
    )


def _fail_for_memory(error: Exception, settings: EngineSettings) -> int:
    """Return the exit code of a worker for whose model there is too little memory. Raises any other error again."""
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


def _warm_up_rest(engine: Engine) -> None:
    from model.checks.known_answer import KnownAnswerError

    try:
        engine.warm_up_rest(lambda done, total, what: log.debug("compiling", step=done, steps=total, program=what))
        log.info("compiled")
    except KnownAnswerError as error:
        # No request has used this program yet, but the device may compute others wrongly, too.
        end_process(BROKEN, str(error))
    except Exception:
        # The request that needs the program compiles it, and reports the error.
        log.exception("compiling ahead failed")


if __name__ == "__main__":
    end_process(main())
