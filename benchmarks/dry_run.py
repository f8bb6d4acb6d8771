"""Compare what a dry run says with what then happens: ``python -m benchmarks.dry_run [--shape qwen3-0.6b]``.

An API and a worker run as processes of their own on SQLite. Another shape than the demonstration's gets random weights,
since time does not depend on them. Each job is tried, then submitted, and timed from its acceptance to its end. Before
the first one, the worker scores a job of another length, so that it has measured its speed. Prints a line for each job:
the tokens, which must be equal, and estimated over measured seconds. The last line is JSON; it fails if a number of
tokens differs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from benchmarks import checkpoint
from benchmarks.shapes import DEMONSTRATION, SHAPES
from benchmarks.upload import deployment

WORKLOADS = {
    "demonstration": {
        "warm": (200, 20, 2_000),
        "jobs": [(20, 20, 500), (200, 20, 5_000), (400, 40, 2_000), (10, 300, 400)],
    },
    "other": {"warm": (300, 20, 20), "jobs": [(30, 20, 20), (300, 20, 100), (1_000, 40, 50), (2_000, 20, 200)]},
}
"""By shape: (tokens of the query, tokens of an item, items) of the job that is not timed and of those that are."""
LABELS = [11, 12]
SECONDS = 3_600.0
HEARTBEAT_SECONDS = 6.0  # in which a worker tells what it has measured


@contextmanager
def model(shape: str) -> Iterator[Path]:
    """Write a checkpoint of this shape, with the demonstration's tokenizer."""
    if shape == "demonstration":
        yield DEMONSTRATION
        return
    with tempfile.TemporaryDirectory() as folder:
        directory = checkpoint.write(Path(folder), SHAPES[shape], seed=0)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(DEMONSTRATION / name, directory / name)
        yield directory


def body(seed: int, query: int, item: int, items: int, vocabulary: int) -> dict[str, Any]:
    """Return a job of random token ids."""
    random = np.random.default_rng(seed)
    return {
        "query": random.integers(20, vocabulary, query).tolist(),
        "items": random.integers(20, vocabulary, (items, item)).tolist(),
        "label_token_ids": LABELS,
        "apply_softmax": True,
    }


def run(http: httpx2.Client, job: dict[str, Any]) -> dict[str, Any]:
    """Submit a job, and return it when it has succeeded."""
    found: dict[str, Any] = http.post("/v1/jobs", json=job).raise_for_status().json()
    while found["status"] in ("queued", "running"):
        found = http.get(f"/v1/jobs/{found['id']}", headers={"Prefer": "wait=30"}).json()
    assert found["status"] == "succeeded", found
    return found


def compare(http: httpx2.Client, seed: int, shape: tuple[int, int, int], vocabulary: int) -> dict[str, Any]:
    """Try a job, run it, and return both outcomes."""
    job = body(seed, *shape, vocabulary)
    dry = http.post("/v1/jobs", json=job | {"dry_run": True}).raise_for_status().json()
    done = run(http, job)
    measured = done["finished_at"] - done["created_at"]
    estimated = dry["estimated_seconds"] + dry["estimated_wait_seconds"]
    result = {
        "query": shape[0],
        "item": shape[1],
        "items": shape[2],
        "algorithms": [part["algorithm"] for part in dry["plan"]],
        "calibrated": dry["calibrated"],
        "tokens_equal": dry["usage"] == done["usage"],
        "estimated_seconds": estimated,
        "measured_seconds": round(measured, 3),
        "ratio": round(estimated / measured, 2),
    }
    print(json.dumps(result), file=sys.stderr)
    return result


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="demonstration")
    parser.add_argument("--uncalibrated", action="store_true", help="begin without a job that the worker measures")
    options = parser.parse_args()
    workload: dict[str, Any] = WORKLOADS.get(options.shape, WORKLOADS["other"])
    with (
        model(options.shape) as directory,
        deployment(worker=True, model=directory) as running,
        httpx2.Client(base_url=running.url, timeout=SECONDS) as http,
    ):
        vocabulary = http.get("/v1/models").json()["data"][0]["vocabulary"]
        if not options.uncalibrated:
            warm: tuple[int, int, int] = workload["warm"]
            run(http, body(0, *warm, vocabulary))
            small = body(0, 8, 8, 1, vocabulary) | {"dry_run": True}
            while not http.post("/v1/jobs", json=small).json()["calibrated"]:
                run(http, body(0, *warm, vocabulary))  # The last one may have run beside the compiler.
                time.sleep(HEARTBEAT_SECONDS)
        found = [compare(http, 1 + n, shape, vocabulary) for n, shape in enumerate(workload["jobs"])]
    worst = max(max(one["ratio"], 1 / one["ratio"]) for one in found)
    print(json.dumps({"shape": options.shape, "jobs": found, "worst_factor": round(worst, 2)}))
    if not all(one["tokens_equal"] for one in found):
        sys.exit("the numbers of tokens differ")


if __name__ == "__main__":
    main()
