"""Measure the memory of ``Client.map`` over many queries: ``python -m benchmarks.mapping --pairs 100000``.

The service is ``scoreline up`` with a worker that makes scores up, so the time says nothing of a model. Prints the
resident memory of this process, which holds the client, and that of the API; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.upload import memory_mb
from scoreline.client import Client
from tests.api.tiny_model import make_model_directory
from tests.scoreline.running import CommandUp

LABELS = (" yes", " no")
SAMPLES = 20


def pairs(count: int, items: int) -> Iterator[tuple[str, list[str]]]:
    """Yield queries that are all different, each with its items."""
    for number in range(count):
        yield f"Question {number}: ", [f"answer {number} of {item}" for item in range(items)]


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scoreline-map-") as folder:
        up = CommandUp(make_model_directory(Path(folder) / "tiny"), Path(folder) / "up")
        try:
            up.wait_until_ready(300.0)
            figures = measure(up, given.pairs, given.items, given.concurrency)
        finally:
            up.close()
    print(json.dumps(figures))


def measure(up: CommandUp, count: int, items: int, concurrency: int) -> dict[str, object]:
    """Score all pairs, and return what it took."""
    client_mb: list[int] = []
    api_mb: list[int] = []
    began = time.monotonic()
    with Client(up.url) as client:
        results = client.map(pairs(count, items), labels=list(LABELS), concurrency=concurrency)
        for number, _ in enumerate(results, 1):
            if number == 1 or number % max(1, count // SAMPLES) == 0:
                client_mb.append(memory_mb(os.getpid(), "VmRSS"))
                api_mb.append(memory_mb(up.children()["api"], "VmRSS"))
                seconds = time.monotonic() - began
                print(
                    f"{number:,} pairs in {seconds:.0f} s: client {client_mb[-1]} MB, API {api_mb[-1]} MB", flush=True
                )
    return {
        "pairs": count,
        "items_of_a_pair": items,
        "concurrency": concurrency,
        "seconds": round(time.monotonic() - began, 1),
        "client_mb": client_mb,
        "api_mb": api_mb,
    }


if __name__ == "__main__":
    main()
