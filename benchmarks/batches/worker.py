"""A worker that takes no time, and remembers queries as a prefix cache does: ``python -m benchmarks.batches.worker``.

It serves the model that the settings name, without its weights. Its argument is how many queries it remembers. The
cached tokens that it reports show which queries it would have had to prefill.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.batches.lines import logits
from checkpoints.files import read_model_card
from jobs.store.records import WorkerRecord
from scoring.layout import ChunkWork, GroupWork, LabelScores, ScoredChunk, TopTokens
from scoring.tokenizing.tokenization import TextTokenizer
from settings.bell import BellSettings
from settings.logs import configure_logs
from settings.scoring import ScoringSettings
from settings.store import StoreSettings
from settings.worker import WorkerSettings
from workers.engine_loop.heartbeat import new_worker_id
from workers.engine_loop.serving import WorkerSlices, serve
from workers.stopping import StopSignals, end_process


class RememberingEngine:
    """Scores by a formula. Of rows behind a query that it does not remember, the first one has no cached tokens."""

    def __init__(self, queries: int) -> None:
        self._most = queries
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def score(
        self,
        groups: Sequence[GroupWork],
        on_step: Callable[[], None],
        on_phase: Callable[[str, float], None] | None = None,
    ) -> Iterator[ScoredChunk]:
        for group in groups:
            key = group.prefix.tobytes()
            is_known = key in self._known
            self._known[key] = None
            self._known.move_to_end(key)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
            for chunk in group.chunks:
                yield _scored(group, chunk, is_known=is_known)
                is_known = True
            on_step()


def _scored(group: GroupWork, chunk: ChunkWork, *, is_known: bool) -> ScoredChunk:
    query = group.prefix.tolist()
    ends = np.cumsum(chunk.rows.lengths).tolist()
    rows = chunk.rows.tokens
    computed = [
        logits(query, rows[end - length : end].tolist(), chunk.columns)
        for end, length in zip(ends, chunk.rows.lengths.tolist(), strict=True)
    ]
    values = np.array(computed, np.float32)
    cached = int(chunk.rows.prefix_ends.sum()) if is_known else int(chunk.rows.prefix_ends[1:].sum())
    # Divided, so that probabilities are not all the same 0.
    logprobs = -np.abs(values) / np.float32(100)
    if (behind := chunk.continuations) is None:
        return ScoredChunk(chunk.id, LabelScores(values, logprobs), cached)
    places = len(behind.tokens)
    top = TopTokens(np.zeros(places, np.int32), np.zeros(places, np.float32))
    found = np.zeros(places, np.float32), np.zeros(len(behind), np.bool_)
    return ScoredChunk(chunk.id, LabelScores(logprobs, logprobs), cached, (), *found, top if chunk.top else None)


def main() -> int:
    """Serve until stopped."""
    configure_logs()
    stopping = StopSignals()
    scoring = ScoringSettings()
    directory = Path(scoring.model)
    card = read_model_card(directory, scoring.model_name or directory.name, None, TextTokenizer.load(directory))
    worker = WorkerRecord(new_worker_id(), card, "none", "none", "float32")
    slices = WorkerSlices(StoreSettings(), BellSettings(), WorkerSettings())
    return serve(RememberingEngine(int(sys.argv[1])), worker, slices, stopping)


if __name__ == "__main__":
    end_process(main())
