"""Jobs that share queries, shuffled: ``python -m benchmarks.backlog --database-url URL``.

100 queries x 100 jobs of one item each are accepted in a random order before a worker begins, and then worked off.
After them come 100 jobs of 100 items behind other queries: as much work in its most convenient form. Both are scored on
the demonstration model, by the loop and the engine that serve. Counted are the queries that were prefilled, and how
full the steps were: tokens that were necessary for each that was computed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.algorithms import random_engine
from benchmarks.latency import AnnouncingBell
from jobs.queue.accept import accept
from jobs.store.database import Database
from jobs.store.migration import migrate
from jobs.store.records import Submission
from model.engine import Engine
from scoring.layout import Rows, TokenIds
from scoring.work import chunk_of
from settings.engine import EngineSettings
from settings.store import StoreSettings
from settings.worker import WorkerSettings
from tools.tpu.workloads import labels_of
from workers.engine_loop.claimer import LoopTiming
from workers.engine_loop.loop import ScoringLoop
from workers.engine_loop.watchdog import Watchdog

QUERIES, ITEMS = 100, 100
QUERY, ITEM = 300, 20
"""Tokens of a query and of an item."""


@dataclass(frozen=True, slots=True)
class WorkedOff:
    """The measurements of one backlog. full: necessary tokens for each computed token."""

    jobs: int
    seconds: float
    prefills: int
    evictions: int
    full: float


def job(engine: Engine, query: TokenIds, items: Sequence[TokenIds]) -> Submission:
    """Return a job of one chunk."""
    return Submission(
        model=engine.card.name,
        work_key=engine.card.work_key,
        prefix=query,
        chunks=[chunk_of(0, Rows.pack(items, [len(query)] * len(items)))],
        label_token_ids=labels_of(engine.card.vocabulary),
        prompt_tokens=sum(len(query) + len(item) for item in items),
        total_items=len(items),
    )


def drawn(engine: Engine, seed: int, items_per_job: int) -> list[Submission]:
    """Return all jobs in a random order."""
    random_ids = np.random.default_rng(seed)

    def draw(*shape: int) -> TokenIds:
        return random_ids.integers(0, engine.card.vocabulary, shape, np.int32)

    jobs = []
    for _ in range(QUERIES):
        query, items = draw(QUERY), list(draw(ITEMS, ITEM))
        jobs += [job(engine, query, items[n : n + items_per_job]) for n in range(0, ITEMS, items_per_job)]
    random.Random(seed).shuffle(jobs)
    return jobs


def work_off(database: Database, engine: Engine, jobs: Sequence[Submission]) -> WorkedOff:
    """Accept all jobs, then time a worker's loop until the last one has ended."""
    job_ids = [accept(database, one).job_id for one in jobs]
    print(f"{len(jobs)} jobs are accepted", file=sys.stderr)
    settings, bell = WorkerSettings(), AnnouncingBell()
    watchdog = Watchdog(settings.step_timeout_seconds, lambda: sys.exit("the engine hangs"))
    timing = LoopTiming(settings.claim_seconds, settings.poll_seconds)
    loop = ScoringLoop(database, bell, engine, watchdog, timing, worker_id="benchmark", card=engine.card)
    scoring = threading.Thread(target=loop.run)
    before, prefixes = engine.computed_tokens, dict(engine.prefix_cache.counts())
    started = time.monotonic()
    scoring.start()
    for job_id in job_ids:
        bell.wait_for(job_id)
    seconds = time.monotonic() - started
    loop.stop()
    scoring.join()
    watchdog.close()
    now = engine.prefix_cache.counts()
    return WorkedOff(
        jobs=len(jobs),
        seconds=round(seconds, 2),
        prefills=now["prefills"] - prefixes["prefills"],
        evictions=now["evictions"] - prefixes["evictions"],
        full=round(QUERIES * (QUERY + ITEMS * ITEM) / (engine.computed_tokens - before), 3),
    )


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", help="of an empty database; default: a SQLite file")
    options = parser.parse_args()
    engine = random_engine("demonstration", EngineSettings())
    engine.warm_up(lambda done, total, program: None)
    engine.warm_up_rest(lambda done, total, program: None)
    with tempfile.TemporaryDirectory() as folder:
        url = options.database_url or f"sqlite:///{Path(folder) / 'store.db'}"
        database = Database.open(StoreSettings(database_url=url))
        migrate(database)
        single = work_off(database, engine, drawn(engine, 1, 1))
        together = work_off(database, engine, drawn(engine, 2, ITEMS))
        database.close()
    ratio = round(single.seconds / together.seconds, 2)
    print(
        json.dumps(
            {
                "database": url.partition(":")[0],
                "single_items": asdict(single),
                "whole_jobs": asdict(together),
                "seconds_ratio": ratio,
            }
        )
    )


if __name__ == "__main__":
    main()
