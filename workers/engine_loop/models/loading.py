"""Load a model into a worker: from its settings to an engine whose programs are compiled and checked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from checkpoints.adapter_folder import AdapterFolder
from checkpoints.card import ModelCard
from checkpoints.files import CheckpointError
from checkpoints.progress import ByteProgress
from checkpoints.source import Checkpoint, Contents, find_adapter, find_checkpoint, name_of_adapter
from jobs.store.provenance import Provenance
from jobs.store.records import WorkerRecord
from settings.engine import EngineSettings
from settings.errors.endings import in_one_line
from settings.errors.mistakes import setting_error
from settings.scoring import ScoringSettings
from settings.version import VERSION
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.libraries import versions_of
from workers.engine_loop.provenance import processor_name
from workers.stopping import BROKEN, end_process

if TYPE_CHECKING:
    from model.architecture.config import DecoderConfig
    from model.engine import Engine
    from model.executable_table import ProgramShelf
    from model.platforms import Platform

log = structlog.stdlib.get_logger("worker")


@dataclass(frozen=True, slots=True)
class Described:
    """A model that is not loaded yet: what its files say."""

    scoring: ScoringSettings
    checkpoint: Checkpoint
    adapter: Path | None  # that is merged into it
    config: DecoderConfig
    card: ModelCard


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in a worker's memory."""

    engine: Engine
    worker: WorkerRecord  # as which the worker registers for this model
    provenance: Provenance  # of its scores, without the algorithms

    @property
    def nbytes(self) -> int:
        """What weights and prefixes take of the memory."""
        return self.engine.nbytes

    @property
    def measured_ratio(self) -> float | None:
        """Measured over estimated seconds of recent work; None before enough was measured."""
        return self.engine.measured_estimate_ratio

    @property
    def prefix_counts(self) -> Mapping[str, int]:
        """The events of its prefix cache so far."""
        return self.engine.prefix_cache.counts()


def describe(scoring: ScoringSettings, version: int | None = None) -> Described:
    """Return what the files of a model say. Nothing large is imported or read.

    version: of the catalogue. Raises CheckpointError, SettingError.
    """
    from model.architecture.config import DecoderConfig
    from scoring.served_checkpoint import ServedCheckpoint

    checkpoint = find_checkpoint(scoring.model, scoring.model_revision, Contents.WEIGHTS)
    try:
        adapter = find_adapter(scoring.model, checkpoint, scoring.adapters)
    except CheckpointError as error:
        if scoring.adapters is None:
            raise
        raise setting_error("adapters", scoring.adapters, in_one_line(error)) from error
    merged = scoring.adapters or (adapter and adapter.name)
    log.info("loading", model=scoring.model, commit=checkpoint.commit, adapter=merged)
    # A configuration that is not supported is refused here.
    config = DecoderConfig.from_directory(checkpoint.directory)
    served = ServedCheckpoint.load(
        checkpoint,
        name=scoring.model_name or name_of_adapter(scoring.adapters),
        delimiter=scoring.multi_item_scoring_delimiter,
        context_length=scoring.context_length,
    )
    return Described(scoring, checkpoint, adapter, config, replace(served.card, version=version))


def load(
    described: Described,
    settings: EngineSettings,
    platform: Platform,
    claim_seconds: float,
    numbers: Sequence[int],
    shelf: ProgramShelf | None = None,
    check: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """Load a model, and compile and check its core programs.

    numbers: of the devices, for the log. shelf: of the programs of several models. check: called
    between steps; an error that it raises ends the loading. Raises CheckpointError, also for a model that does not fit;
    KnownAnswerError if the device computes it wrongly.
    """
    from model.engine import Engine
    from scoring.planning.description import describe as described_planner

    scoring, card = described.scoring, described.card
    loading = ByteProgress(lambda: None, lambda done, total: log.info("loading", step=done, steps=total, unit="bytes"))

    def read(done: int, total: int) -> None:
        check()
        loading.advance(done, total)

    engine = Engine.load(
        described.checkpoint.directory,
        settings,
        card,
        platform,
        read,
        scoring.multi_item_algorithm,
        described.adapter,
        None if scoring.adapter_folder is None else AdapterFolder(scoring.adapter_folder),
        shelf,
    )
    number = numbers[0] if len(numbers) == 1 else list(numbers)
    log.info("loaded", device=engine.device, number=number, dtype=engine.dtype)
    # The programs of whole steps can only be checked together, so they are compiled before anything is served.
    if settings.multi_item_enable_startup_warmup or platform.whole_steps:

        def compiled(done: int, total: int, what: str) -> None:
            check()
            log.info("compiling", step=done, steps=total, program=what)

        engine.warm_up(compiled)
    planner = described_planner(engine.planner)
    provenance = Provenance(
        model=card.name,
        revision=described.checkpoint.commit,
        weights_fingerprint=engine.weights_fingerprint,
        tokenizer_fingerprint=card.tokenizer_fingerprint,
        dtype=engine.dtype,
        device=engine.device,
        processor=processor_name() if platform.name == "cpu" else None,
        step_tokens=platform.step_tokens(settings.step_tokens),
        batch_invariant=settings.batch_invariant,
        configuration=sha256(f"{described.config} {json.dumps(planner, sort_keys=True)}".encode()).hexdigest(),
        versions={
            "scoreline": VERSION,
            "jax": version_of("jax"),
            "jaxlib": version_of("jaxlib"),
            **versions_of(platform.name),
        },
    )
    worker = WorkerRecord(
        new_worker_id(),
        card,
        engine.weights_fingerprint,
        engine.device,
        engine.dtype,
        planning={"planner": planner, "claim_seconds": claim_seconds},
        provenance_id=provenance.id if engine.planner.policy.is_exact else None,
    )
    return LoadedModel(engine, worker, provenance)


def compile_ahead(engine: Engine) -> None:
    """Compile the rest of the programs in a thread, while the engine scores."""
    threading.Thread(target=_warm_up_rest, args=(engine,), name="compiling", daemon=True).start()


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
