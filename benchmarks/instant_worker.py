"""A worker whose engine takes no time: what is left is the queue. ``python -m benchmarks.instant_worker``.

With ``--model FOLDER`` it says that it serves the model in a folder, so that an API of this model sends it work.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from checkpoints.card import ModelCard
from checkpoints.source import Contents, find_checkpoint
from jobs.store.records import WorkerRecord
from scoring.layout import GroupWork, LabelScores, ScoredChunk
from scoring.served_checkpoint import ServedCheckpoint
from settings.bell import BellSettings
from settings.logs import configure_logs
from settings.store import StoreSettings
from settings.worker import WorkerSettings
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.serving import WorkerSlices, serve
from workers.stopping import StopSignals, end_process

CARD = ModelCard("instant", context_length=4_096, vocabulary=50_000, tokenizer_fingerprint="f" * 64)


class InstantEngine:
    """Every logit is zero."""

    def score(
        self,
        groups: Sequence[GroupWork],
        on_step: Callable[[], None],
        on_phase: Callable[[str, float], None] | None = None,
    ) -> Iterator[ScoredChunk]:
        for group in groups:
            for chunk in group.chunks:
                logits = np.zeros((len(chunk.rows), chunk.columns), np.float32)
                scored = ScoredChunk(chunk.id, LabelScores(logits, logits), 0)
                if (continuations := chunk.continuations) is not None:
                    logprobs, greedy = np.zeros_like(continuations.tokens, np.float32), continuations.lengths == 0
                    scored = replace(scored, token_logprobs=logprobs, greedy=greedy)
                yield scored
            on_step()


def main() -> int:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    folder: Path | None = parser.parse_args().model
    configure_logs()
    stopping = StopSignals()
    card = CARD
    if folder is not None:
        card = ServedCheckpoint.load(
            find_checkpoint(str(folder), None, Contents.DESCRIPTION), name=None, delimiter=None, context_length=None
        ).card
    worker = WorkerRecord(new_worker_id(), card, "none", "none", "float32")
    return serve(
        InstantEngine(),
        worker,
        WorkerSlices(StoreSettings(), BellSettings(), WorkerSettings()),
        stopping,
    )


if __name__ == "__main__":
    end_process(main())
