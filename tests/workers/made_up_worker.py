"""The process of a scoring worker whose engine computes its scores by a formula instead of a model.

``python -m tests.workers.made_up_worker MODE`` serves the tests' own model card. With ``MODE DIRECTORY`` it serves the
card of the model in a folder, as the API does. MODE is a key of :data:`ENGINES`, or ``loading``, which never serves.
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
from scoring.layout import GroupWork, LabelScores, ScoredChunk
from scoring.tokenizing.tokenization import TextTokenizer
from settings.bell import BellSettings
from settings.logs import configure_logs
from settings.store import StoreSettings
from settings.worker import WorkerSettings
from tests.workers.conftest import CARD
from tests.workers.engines import POISON, MadeUpEngine
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.serving import WorkerSlices, serve
from workers.stopping import StopSignals, end_process


class HangingEngine(MadeUpEngine):
    """Never returns from scoring, as with a device call that hangs."""

    def score(
        self, groups: Sequence[GroupWork], on_step: Callable[[], None], on_phase: object = None
    ) -> Iterator[ScoredChunk]:
        while True:
            time.sleep(3600)
        yield


class FrozenGarbageEngine(MadeUpEngine):
    """Fails unless the objects from start-up are hidden from the garbage collector."""

    def score(
        self, groups: Sequence[GroupWork], on_step: Callable[[], None], on_phase: object = None
    ) -> Iterator[ScoredChunk]:
        assert gc.get_freeze_count() > 0
        return super().score(groups, on_step)


class SlowEngine(MadeUpEngine):
    """Takes 50 ms for every chunk."""

    def score(
        self, groups: Sequence[GroupWork], on_step: Callable[[], None], on_phase: object = None
    ) -> Iterator[ScoredChunk]:
        def slowly() -> None:
            time.sleep(0.05)
            on_step()

        return super().score(groups, slowly)


class BrokenEngine(MadeUpEngine):
    """Fails at any work."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True


class DyingEngine(MadeUpEngine):
    """Kills its process at a chunk that contains the poison, as a fault in a device's library may."""

    def score(
        self, groups: Sequence[GroupWork], on_step: Callable[[], None], on_phase: object = None
    ) -> Iterator[ScoredChunk]:
        for group in groups:
            for chunk in group.chunks:
                if POISON in chunk.rows.tokens:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield from super().score([replace(group, chunks=(chunk,))], on_step)


class StrangeEngine(MadeUpEngine):
    """Computes scores that differ from those of every other engine here."""

    def score(
        self, groups: Sequence[GroupWork], on_step: Callable[[], None], on_phase: object = None
    ) -> Iterator[ScoredChunk]:
        for scored in super().score(groups, on_step):
            yield replace(scored, scores=LabelScores(scored.scores.logits + 100, scored.scores.logprobs))


ENGINES = {
    "broken": BrokenEngine,
    "dying": DyingEngine,
    "hang": HangingEngine,
    "quick": MadeUpEngine,
    "frozen-garbage": FrozenGarbageEngine,
    "slow": SlowEngine,
    "strange": StrangeEngine,
}


def served_card() -> ModelCard:
    """Return the model card that this process serves."""
    if len(sys.argv) < 3:
        return CARD
    directory = Path(sys.argv[2])
    return read_model_card(directory, CARD.name, None, TextTokenizer.load(directory))


def main() -> int:
    configure_logs()
    stopping = StopSignals()
    if sys.argv[1] == "loading":
        time.sleep(3600)
    worker = WorkerRecord(new_worker_id(), served_card(), "weights", "none", "float32")
    settings = WorkerSlices(StoreSettings(), BellSettings(), WorkerSettings())
    return serve(ENGINES[sys.argv[1]](), worker, settings, stopping)


if __name__ == "__main__":
    end_process(main())
