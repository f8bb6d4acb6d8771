"""A scoring worker as a process, whose engine makes its scores up.

``python -m tests.workers.made_up_worker MODE`` serves the tests' own model, and with ``MODE DIRECTORY`` that of the
tokenizer in a folder, as the API does.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from checkpoints.card import ModelCard
from checkpoints.files import read_model_card
from jobs.store.records import WorkerRecord
from scoring.layout import GroupWork, LabelScores, Scored
from scoring.tokenization import TextTokenizer
from settings.bell import BellSettings
from settings.engine import EngineSettings
from settings.jobs import StoreSettings
from settings.logs import configure_logs
from tests.workers.conftest import CARD
from tests.workers.engines import POISON, MadeUpEngine
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.serving import WorkerSettings, serve
from workers.stopping import Stopping, end_process


class HangingEngine(MadeUpEngine):
    """Never comes back, as a device call may."""

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        while True:
            time.sleep(3600)
        yield


class SettledEngine(MadeUpEngine):
    """Fails where the collector looks at what start-up left."""

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        assert gc.get_freeze_count() > 0
        return super().score(groups, on_step)


class SlowEngine(MadeUpEngine):
    """Takes a moment for every chunk."""

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        def slowly() -> None:
            time.sleep(0.05)
            on_step()

        return super().score(groups, slowly)


class BrokenEngine(MadeUpEngine):
    """Fails at anything."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True


class DyingEngine(MadeUpEngine):
    """Takes its process down at a sequence that holds the poison, as a fault in a device's library may."""

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        for group in groups:
            for chunk in group.chunks:
                if POISON in chunk.rows.tokens:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield from super().score([replace(group, chunks=(chunk,))], on_step)


class StrangeEngine(MadeUpEngine):
    """Its scores can be told from everybody else's."""

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        for scored in super().score(groups, on_step):
            yield replace(scored, scores=LabelScores(scored.scores.logits + 100, scored.scores.logprobs))


ENGINES = {
    "broken": BrokenEngine,
    "dying": DyingEngine,
    "hang": HangingEngine,
    "quick": MadeUpEngine,
    "settled": SettledEngine,
    "slow": SlowEngine,
    "strange": StrangeEngine,
}


def served_card() -> ModelCard:
    """What to say that is served."""
    if len(sys.argv) < 3:
        return CARD
    directory = Path(sys.argv[2])
    return read_model_card(directory, CARD.name, None, TextTokenizer.load(directory))


def main() -> int:
    configure_logs()
    stopping = Stopping()
    if sys.argv[1] == "loading":
        time.sleep(3600)
    worker = WorkerRecord(new_worker_id(), served_card(), "weights", "none", "float32")
    settings = WorkerSettings(StoreSettings(), BellSettings(), EngineSettings())
    return serve(ENGINES[sys.argv[1]](), worker, settings, stopping)


if __name__ == "__main__":
    end_process(main())
