"""Measure how long an interactive call waits while a worker is busy with a bulk job: ``python -m benchmarks.latency``.

A worker's scoring loop runs on a SQLite database, with random bf16 weights, because the duration of a step does not
depend on them. While it scores a bulk job of many items behind one long query, a call of one item behind another query
is submitted every few seconds, and timed until its job has ended. All programs are compiled before. HTTP and the
latency of Redis are not included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from benchmarks.shapes import SHAPES
from checkpoints.card import ModelCard
from jobs.queue.accept import accept
from jobs.queue.read import get_job
from jobs.store.database import Database
from jobs.store.migration import migrate
from jobs.store.records import JobStatus, Submission
from model.architecture.decoder import Decoder
from model.cpu_threads import choose_cpu_threads
from model.engine import Engine
from model.platforms import Platform
from scoring.layout import GroupWork, Rows, ScoredChunk
from scoring.options import Priority
from scoring.work import chunk_of
from settings.engine import EngineSettings
from settings.store import StoreSettings
from settings.worker import WorkerSettings
from tools.tpu.workloads import LABELS
from workers.engine_loop.claimer import LoopTiming
from workers.engine_loop.loop import ScoringLoop
from workers.engine_loop.watchdog import Watchdog

QUERY, ITEM, CALL_QUERY = 2_000, 20, 300
"""The tokens of the bulk job's query (at most the model's context), of every item, and of a call's query."""
CHUNK_ITEMS = 256


class TimedEngine:
    """An engine that measures its steps, without the work that preempts it between them."""

    def __init__(self, engine: Engine) -> None:
        self.step_seconds: list[float] = []  # of each step
        self._engine = engine

    def score(
        self, groups: Sequence[GroupWork], on_step: Callable[[], None], on_phase: object = None
    ) -> Iterator[ScoredChunk]:
        began = time.monotonic()

        def timed() -> None:
            nonlocal began
            self.step_seconds.append(time.monotonic() - began)
            on_step()
            began = time.monotonic()

        return self._engine.score(groups, timed)


class AnnouncingBell:
    """A bell within the process, for threads that wait for the end of a job. There is no other worker to ring."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._changed = threading.Condition()

    def ring(self, model: str) -> None:
        pass

    def announce(self, job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> None:
        with self._changed:
            self._ended.update(job_ids)
            self._changed.notify_all()

    def wait_for(self, job_id: str) -> None:
        """Return when a job has ended."""
        with self._changed:
            self._changed.wait_for(lambda: job_id in self._ended)

    def close(self) -> None:
        pass


def submission(card: ModelCard, seed: int, query: int, items: int, priority: Priority) -> Submission:
    """Return a job of random items behind a random query."""
    random = np.random.default_rng(seed)
    rows = [random.integers(0, card.vocabulary, ITEM, np.int32) for _ in range(items)]
    chunks = [
        chunk_of(first, Rows.pack(part, [query] * len(part)))
        for first in range(0, items, CHUNK_ITEMS)
        if (part := rows[first : first + CHUNK_ITEMS])
    ]
    return Submission(
        model=card.name,
        work_key=card.work_key,
        prefix=random.integers(0, card.vocabulary, query, np.int32),
        chunks=chunks,
        label_token_ids=tuple(label % card.vocabulary for label in LABELS),
        prompt_tokens=items * (query + ITEM),
        total_items=items,
        priority=priority,
    )


def loaded(shape: str) -> tuple[TimedEngine, ModelCard]:
    """Return an engine whose programs are compiled, and its model card."""
    config = SHAPES[shape]
    card = ModelCard(shape, config.context, config.vocabulary, "random")
    settings = EngineSettings()
    choose_cpu_threads(settings.cpu_threads, config, os.environ)
    platform = Platform.of(jax.devices()[0])
    dtype = platform.serving_dtype(settings.dtype)
    decoder = Decoder(config, dtype=dtype, rngs=nnx.Rngs(0), tied_as_rows=platform.tied_as_rows)
    engine = Engine(decoder, settings, card, "random", platform)
    tell = lambda done, total, what: print(f"compiled {what}, {done} of {total}", file=sys.stderr)  # noqa: E731
    engine.warm_up(tell)
    engine.warm_up_rest(tell)
    return TimedEngine(engine), card


def waits(
    database: Database, loop: ScoringLoop, bell: AnnouncingBell, card: ModelCard, bulk: str, every: float
) -> list[float]:
    """Return how many seconds each call waited that ended while the bulk job was running."""
    found: list[float] = []
    for seed in range(1, 1_000_000):
        call = submission(card, seed, CALL_QUERY, 1, Priority.INTERACTIVE)
        submitted = time.monotonic()
        job_id = accept(database, call).job_id
        loop.wake()
        bell.wait_for(job_id)
        waited = time.monotonic() - submitted
        if get_job(database, "default", bulk).status is not JobStatus.RUNNING:
            break
        found.append(waited)
        print(f"waited {waited:.3f} s", file=sys.stderr)
        time.sleep(every)
    return found


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--items", type=int, default=5_000, help="of the bulk job")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two calls")
    options = parser.parse_args()
    engine, card = loaded(options.shape)
    query = min(QUERY, card.context_length - ITEM)
    settings = WorkerSettings()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}"
        database, bell = Database.open(StoreSettings(database_url=url)), AnnouncingBell()
        migrate(database)
        watchdog = Watchdog(settings.step_timeout_seconds, lambda: sys.exit("the engine hangs"))
        timing = LoopTiming(settings.claim_seconds, settings.poll_seconds)
        loop = ScoringLoop(database, bell, engine, watchdog, timing, worker_id="benchmark", card=card)
        bulk = accept(database, submission(card, 0, query, options.items, Priority.BULK)).job_id
        scoring = threading.Thread(target=loop.run)
        scoring.start()
        while get_job(database, "default", bulk).scored_items == 0:
            time.sleep(0.01)
        waited = waits(database, loop, bell, card, bulk, options.every)
        bell.wait_for(bulk)
        loop.stop()
        scoring.join()
        watchdog.close()
        database.close()
    print(
        json.dumps(
            {
                "shape": options.shape,
                "bulk": f"{query} x ({options.items} of {ITEM})",
                "calls": len(waited),
                "wait_seconds": spread(waited),
                "step_seconds": spread(engine.step_seconds),
            }
        )
    )


def spread(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return the median and the maximum, or None without any values."""
    if not seconds:
        return None
    return {"median": round(statistics.median(seconds), 4), "worst": round(max(seconds), 4)}


if __name__ == "__main__":
    main()
