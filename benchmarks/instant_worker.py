"""A worker whose engine takes no time: what is left is the queue. ``python -m benchmarks.instant_worker``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from checkpoints.card import ModelCard
from jobs.store.records import WorkerRecord
from scoring.layout import GroupWork, LabelScores, ScoredChunk
from settings.bell import BellSettings
from settings.jobs import StoreSettings
from settings.logs import configure_logs
from settings.worker import WorkerSettings
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.serving import WorkerSlices, serve
from workers.stopping import StopSignals, end_process

CARD = ModelCard("instant", context_length=4_096, vocabulary=50_000, tokenizer_fingerprint="f" * 64)


class InstantEngine:
    """Every logit is zero."""

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[ScoredChunk]:
        for group in groups:
            for chunk in group.chunks:
                logits = np.zeros((len(chunk.rows), len(chunk.label_token_ids)), np.float32)
                yield ScoredChunk(chunk.id, LabelScores(logits, logits), 0)
            on_step()


def main() -> int:
    """Serve until stopped."""
    configure_logs()
    stopping = StopSignals()
    worker = WorkerRecord(new_worker_id(), CARD, "none", "none", "float32")
    return serve(
        InstantEngine(),
        worker,
        WorkerSlices(StoreSettings(), BellSettings(), WorkerSettings()),
        stopping,
    )


if __name__ == "__main__":
    end_process(main())
