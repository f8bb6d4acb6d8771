"""Run a mixed load at capacity for minutes: ``python -m benchmarks.load --minutes 10``.

The whole service, as ``scoreline up`` starts it on the demonstration model, is kept busy with bulk jobs, while smaller
jobs and interactive calls follow each other without a pause. The lengths of the queries vary up to the model's context.
Every answer is checked: the scores of an item behind a query must always have the same bits, whatever is scored with
it. Prints the numbers of requests and answers, the durations of calls, and the memory of API and worker over time; the
last line is JSON. The exit status is 1 if any request failed or any scores differed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.shapes import DEMONSTRATION, SHAPES
from scoreline.client import Client, Priority, ScorelineError
from scoreline.embedded import EmbeddedSettings
from scoreline.terminal.progress_display import ProgressDisplay
from scoreline.up import running, stop_signals

QUERIES, ITEMS = 60, 300
LABELS = (7, 11, 13)
ROLES = {"api": "api", "worker": "workers.engine_loop"}
SAMPLE_SECONDS = 10.0
JOB_SECONDS = 600.0

Ids = tuple[int, ...]


class Load:
    """Sends requests, counts the answers, and checks that repeated scores are equal."""

    def __init__(self, url: str, until: float) -> None:
        self._url = url
        self._until = until
        self._lock = threading.Lock()
        self._known: dict[tuple[Ids, Ids], tuple[float, ...]] = {}
        self.answered: Counter[str] = Counter()
        self.failures: list[str] = []
        self.items = 0
        self.different = 0
        self.call_seconds: list[float] = []

    def keep_asking(self, kind: str, ask: Callable[[Client, random.Random], None], seed: int) -> None:
        """Send requests one after another until the time is over."""
        drawing = random.Random(seed)
        with Client(self._url, timeout=60.0) as client:
            while time.monotonic() < self._until:
                try:
                    ask(client, drawing)
                except ScorelineError as error:
                    with self._lock:
                        self.failures.append(f"{kind}: {error}")
                else:
                    with self._lock:
                        self.answered[kind] += 1

    def call(self, client: Client, drawing: random.Random) -> None:
        """Send an interactive call."""
        query, items = drawn(drawing, 5)
        began = time.monotonic()
        found = client.score(query, items, label_token_ids=LABELS).scores
        with self._lock:
            self.call_seconds.append(time.monotonic() - began)
        self._check(query, items, found)

    def job(self, size: int, priority: Priority) -> Callable[[Client, random.Random], None]:
        """Return a function that submits a job of up to ``size`` items and waits for it."""

        def ask(client: Client, drawing: random.Random) -> None:
            query, items = drawn(drawing, size)
            job = client.wait(client.submit(query, items, label_token_ids=LABELS, priority=priority).id, JOB_SECONDS)
            if job.status != "succeeded":
                raise ScorelineError("job", f"{job.status}: {job.error}", 0)
            self._check(query, items, [found.scores for found in client.scores(job.id)])
            client.delete(job.id)

        return ask

    def _check(self, query: Sequence[int], items: Sequence[Sequence[int]], found: Sequence[Sequence[float]]) -> None:
        with self._lock:
            if len(found) != len(items):
                self.failures.append(f"{len(found)} scores of {len(items)} items")
            for item, scores in zip(items, found, strict=False):
                known = self._known.setdefault((tuple(query), tuple(item)), tuple(scores))
                self.different += known != tuple(scores)
            self.items += len(items)


def drawn(drawing: random.Random, most: int) -> tuple[list[int], list[list[int]]]:
    """Return one of the queries, and at most ``most`` of the items."""
    items = [list(ids(2_000_000 + drawing.randrange(ITEMS), 24)) for _ in range(drawing.randint(1, most))]
    return list(ids(drawing.randrange(QUERIES), SHAPES["demonstration"].context - 24)), items


def ids(number: int, longest: int) -> Ids:
    """Return the tokens that belong to a number: mostly few, and at most ``longest``."""
    drawing = random.Random(number)
    length = max(1, int(longest ** drawing.random()))
    return tuple(drawing.randrange(SHAPES["demonstration"].vocabulary) for _ in range(length))


def memory_mb() -> dict[str, float]:
    """Return the resident memory of API and worker, which are found by their command lines."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes().decode().split("\0")
            status = (directory / "status").read_text()
        except OSError:
            continue
        for role, module in ROLES.items():
            if "scoreline.child" in words and module in words:
                (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")] or ["VmRSS: 0 kB"]
                found[role] = int(line.split()[1]) / 1024
    return found


def main() -> int:
    """Run the load, print the results, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    memory: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as data, stop_signals() as stop:
        settings = EmbeddedSettings(str(DEMONSTRATION), Path(data), port=0, model_name="demonstration")
        with running(settings, stop, ProgressDisplay(Console(stderr=True))) as service:
            load = Load(service.url, time.monotonic() + 60 * minutes)
            asking = [("bulk job", load.job(2_000, "bulk"))] * 2
            asking += [("job", load.job(50, "normal"))] * 2 + [("call", load.call)] * 2
            threads = [
                threading.Thread(target=load.keep_asking, args=(kind, ask, seed))
                for seed, (kind, ask) in enumerate(asking)
            ]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(SAMPLE_SECONDS)
                memory.append(memory_mb())
                print(f"{load.items} items, {len(load.failures)} failures, {memory[-1]}", file=sys.stderr)
    for failure in load.failures[:10]:
        print(failure, file=sys.stderr)
    asked = sum(load.answered.values()) + len(load.failures)
    report = {
        "minutes": minutes,
        "asked": asked,
        "answered": dict(load.answered),
        "success_rate": sum(load.answered.values()) / asked,
        "different_scores": load.different,
        "items_per_s": round(load.items / minutes / 60, 1),
        "call_seconds": {
            "median": round(statistics.median(load.call_seconds), 3),
            "worst": round(max(load.call_seconds), 3),
        },
        "memory_mb": {
            role: [round(sample[role]) for sample in memory[:: max(1, len(memory) // 10)] if role in sample]
            for role in ROLES
        },
    }
    print(json.dumps(report))
    return int(bool(load.failures or load.different))


if __name__ == "__main__":
    sys.exit(main())
