"""How long a worker warms up, and whether its first requests are slower than others: ``python -m benchmarks.warm_up``.

Runs in a process of its own, with random weights: the warm-up of the core set, then requests one after another, each
with a query of its own, before the rest of the programs is compiled. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from benchmarks.algorithms import random_engine
from benchmarks.shapes import SHAPES
from benchmarks.timing import alone
from settings.engine import EngineSettings
from tools.tpu.workloads import alike

if TYPE_CHECKING:
    from model.engine import Engine


def measure(shape: str, query: int, items: int, item: int, requests: int) -> tuple[float, list[float]]:
    """Return the seconds of the warm-up, and of each request."""
    engine = random_engine(shape, EngineSettings())
    started = time.perf_counter()
    engine.warm_up(lambda done, total, program: None)
    return time.perf_counter() - started, request_seconds(engine, shape, query, items, item, requests)


def request_seconds(engine: Engine, shape: str, query: int, items: int, item: int, requests: int) -> list[float]:
    """Return the seconds of requests, one after another. The first query has ``query`` tokens, each other one more."""
    seconds = []
    for number in range(requests):
        work = alike(query + number, items, item).work(SHAPES[shape].vocabulary)  # no query is the one before
        started = time.perf_counter()
        list(engine.score(work, lambda: None))
        seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--query", type=int, default=500, help="tokens of the first one; each has one more")
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--item", type=int, default=20, help="tokens of an item")
    parser.add_argument("--requests", type=int, default=10)
    options = parser.parse_args()
    warm_up, seconds = alone(measure, options.shape, options.query, options.items, options.item, options.requests)
    print(json.dumps({"warm_up_seconds": round(warm_up, 1), "request_seconds": [round(one, 3) for one in seconds]}))


if __name__ == "__main__":
    main()
