"""Processes of scoring workers with a real, tiny checkpoint."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from model.architecture.config import DecoderConfig
from model.architecture.rope import Rope
from tests.forked.running import WORKER, start
from tests.workers.conftest import MODEL

CONFIG = DecoderConfig(
    vocabulary=512,
    width=32,
    layers=2,
    query_heads=4,
    kv_heads=2,
    head_dim=16,
    mlp_width=64,
    context=512,
    rope=Rope(10_000.0),
    norm_epsilon=1e-6,
    tied=True,
)
_numbers = itertools.count(1)


class RealWorker:
    """A forked process of a worker, whose log goes to a file."""

    def __init__(self, log: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log = log
        self.process = start(*command, imports=WORKER, log=log, environment=environment)

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log.read_text()

    def ended(self, seconds: float = 60.0) -> tuple[int, str]:
        """Return the exit status and the log once it has ended. Raises TimeoutExpired."""
        status = self.process.wait(seconds)
        return status, self.log


def worker(model: Path, *module: str, **settings: object) -> RealWorker:
    """Start a worker process without a bell, which polls for work.

    module: the module to run and its arguments; by default that of the worker.
    """
    variables = {
        "model": model,
        "model_name": MODEL,
        "multi_item_enable_startup_warmup": False,
        "poll_seconds": 0.1,
        "bell_socket": "/nowhere",
    }
    environment = {f"SCORELINE_{name.upper()}": str(value) for name, value in (variables | settings).items()}
    log = model.parent / f"worker-{next(_numbers)}.log"
    return RealWorker(log, ["-m", *(module or ("workers.engine_loop",))], os.environ | environment)
