"""A worker of the embedded service with made-up scores. The variable ``STAND_IN`` makes it misbehave."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import structlog

from checkpoints.files import CheckpointError, read_model_card
from checkpoints.source import Contents, find_checkpoint
from jobs.store.records import WorkerRecord
from scoring.tokenizing.tokenization import TextTokenizer
from settings.bell import BellSettings
from settings.errors.endings import Ending
from settings.errors.mistakes import setting_error
from settings.logs import configure_logs
from settings.scoring import ScoringSettings
from settings.store import StoreSettings
from settings.worker import WorkerSettings
from tests.workers.engines import MadeUpEngine
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.serving import WorkerSlices, serve
from workers.stopping import StopSignals, end_process

log = structlog.stdlib.get_logger("worker")


def misbehave() -> None:
    """Misbehave as ``STAND_IN`` says, if it is set."""
    match os.environ.get("STAND_IN", "").split(":"):
        case ["refuses"]:
            log.error("can't start", reason="the checkpoint is not to my taste")
            sys.exit(1)
        case ["loads forever"]:
            for step in range(1, 4):
                log.info("compiling", step=step, steps=100)
            StopSignals()
            time.sleep(3600)
        case ["ignores signals"]:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            log.info("ready")
            time.sleep(3600)
        case ["crashes while there is", path] if Path(path).exists():
            print("Segmentation fault, or the like", file=sys.stderr, flush=True)
            os._exit(139)


def main() -> int:
    configure_logs()
    misbehave()
    stopping = StopSignals()
    scoring = ScoringSettings()
    try:
        directory = find_checkpoint(scoring.model, scoring.model_revision, Contents.DESCRIPTION).directory
        card = read_model_card(directory, scoring.model_name, None, TextTokenizer.load(directory))
    except CheckpointError as error:
        log.error("can't start", reason=str(setting_error("model", scoring.model, str(error))))
        return Ending.MISCONFIGURED
    worker = WorkerRecord(new_worker_id(), card, "weights", "none", "float32")
    return serve(
        MadeUpEngine(),
        worker,
        WorkerSlices(StoreSettings(), BellSettings(), WorkerSettings()),
        stopping,
    )


if __name__ == "__main__":
    end_process(main())
