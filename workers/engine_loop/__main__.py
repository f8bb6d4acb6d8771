"""The scoring worker as a process, which owns a device: ``python -m workers.engine_loop``."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import structlog
from pydantic import ValidationError

from jobs.store.records import WorkerRecord
from settings.bell import BellSettings
from settings.engine import EngineSettings
from settings.jobs import StoreSettings
from settings.logs import configure_logs
from settings.scoring import ScoringSettings
from settings.unknown import warn_of_unknown_variables
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.serving import WorkerSettings, serve
from workers.stopping import BROKEN, Stopping, end_process

if TYPE_CHECKING:
    from model.engine import Engine

log = structlog.stdlib.get_logger("worker")


def main() -> int:
    """Load the model, then score until stopped.

    Returns the exit status: 1, after one line, if it can't be loaded, or would compute something wrong here.
    """
    configure_logs()
    warn_of_unknown_variables(os.environ)
    # It would advise to install PyTorch, which has no business here, in lines that are no JSON.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    stopping = Stopping()
    # Here, because they take seconds: by now a signal ends the process in good order, and the log says what it does.
    from checkpoints.files import ModelFilesError, read_model_card
    from checkpoints.progress import ByteProgress
    from checkpoints.source import Contents, find_checkpoint
    from model.config import DecoderConfig
    from scoring.tokenization import TextTokenizer

    try:
        scoring = ScoringSettings()
        settings = WorkerSettings(StoreSettings(), BellSettings(), EngineSettings())
        checkpoint = find_checkpoint(scoring.model, scoring.model_revision, Contents.WEIGHTS)
        log.info("loading", model=scoring.model, commit=checkpoint.commit)
        # What can be refused at once is, before anything large is imported or read.
        DecoderConfig.from_directory(checkpoint.directory)
        tokenizer = TextTokenizer.load(checkpoint.directory)
        card = read_model_card(
            checkpoint.directory,
            checkpoint.name if scoring.model_name is None else scoring.model_name,
            scoring.multi_item_scoring_delimiter,
            tokenizer,
            scoring.context_length,
        )
        from model.checks.known_answer import KnownAnswerError
        from model.engine import Engine

        loading = ByteProgress(
            lambda: None, lambda done, total: log.info("loading", step=done, steps=total, unit="bytes")
        )
        engine = Engine.load(checkpoint.directory, settings.engine, card, loading.advance, scoring.multi_item_algorithm)
        log.info("loaded", device=engine.device, dtype=engine.dtype)
    except (ModelFilesError, ValidationError) as error:
        log.error("can't start", reason=str(error))
        return BROKEN
    if settings.engine.multi_item_enable_startup_warmup:
        try:
            engine.warm_up(lambda done, total, what: log.info("compiling", step=done, steps=total, program=what))
        except KnownAnswerError as error:
            log.error("can't start", reason=str(error))
            return BROKEN
        threading.Thread(target=_warm_up_rest, args=(engine,), name="compiling", daemon=True).start()
    worker = WorkerRecord(new_worker_id(), card, engine.weights_fingerprint, engine.device, engine.dtype)
    return serve(engine, worker, settings, stopping, engine.prefixes.counts)


def _warm_up_rest(engine: Engine) -> None:
    from model.checks.known_answer import KnownAnswerError

    try:
        engine.warm_up_rest(lambda done, total, what: log.debug("compiling", step=done, steps=total, program=what))
        log.info("compiled")
    except KnownAnswerError as error:
        # Nobody has used that program, but what else the device gets wrong is anyone's guess.
        end_process(BROKEN, str(error))
    except Exception:
        # Whoever needs a program compiles it, and is told what is wrong with it.
        log.exception("compiling ahead failed")


if __name__ == "__main__":
    end_process(main())
