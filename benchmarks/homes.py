"""Measure how often queries are computed when jobs that share them arrive over time: ``python -m benchmarks.homes``.

An API and four workers with the demonstration model, whose context is made longer, run on a private PostgreSQL. Jobs
over a few long queries arrive one by one, in random order; meanwhile another tenant sends short calls. A query is
computed anew by each worker that claims work behind it for the first time. Prints how many queries were computed, and
the times of jobs and calls; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.batches.__main__ import KEY, Service
from benchmarks.pairs import WORKER
from benchmarks.shapes import DEMONSTRATION
from benchmarks.upload import READY_SECONDS
from scoreline.client import Client, Unreachable
from scoreline.server_process import python_command
from tests.services import wait_until

ITEMS = 4
ITEM_TOKENS = 8
LABELS = [10, 11]
VOCABULARY = 250  # ids that every tokenizer has
CALL_SECONDS = 0.25  # between two calls of the other tenant
WAIT_SECONDS = 600.0


def main() -> int:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=2_000, help="of a query")
    parser.add_argument("--seconds", type=float, default=100.0, help="over which the jobs arrive")
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scoreline-homes-")))
        model = _with_longer_context(folder / "model", 2 * given.tokens)
        service = Service(stack, folder, "postgres", WORKER, given.workers, SCORELINE_MODEL=str(model))
        client = stack.enter_context(Client(service.url, api_key=KEY, timeout=WAIT_SECONDS))
        wait_until(lambda: _live(client) == given.workers, "all workers are ready", READY_SECONDS)
        other = stack.enter_context(Client(service.url, api_key=_other_key(service), timeout=WAIT_SECONDS))
        report = measure(client, other, given)
    print(json.dumps(report))
    return 0


def measure(client: Client, other: Client, given: argparse.Namespace) -> dict[str, object]:
    """Send the jobs, and calls beside them. Return what was measured."""
    drawing = random.Random(0)

    def tokens(count: int) -> list[int]:
        return drawing.choices(range(20, VOCABULARY), k=count)

    queries = [tokens(given.tokens) for _ in range(given.queries)]
    order = [number % given.queries for number in range(given.jobs)]
    drawing.shuffle(order)
    bodies = [(queries[number], [tokens(ITEM_TOKENS) for _ in range(ITEMS)]) for number in order]
    # Each worker measures its pace, and compiles, before anything counts.
    for _ in range(3):
        bodies_of_others = [(tokens(given.tokens), [tokens(ITEM_TOKENS)]) for _ in range(16)]
        for job in [client.submit(*body, label_token_ids=LABELS) for body in bodies_of_others]:
            client.wait(job, timeout=WAIT_SECONDS)
    stopped, calls = threading.Event(), list[float]()

    def call() -> None:
        while not stopped.wait(CALL_SECONDS):
            began = time.monotonic()
            other.score(tokens(6), [tokens(ITEM_TOKENS)], label_token_ids=LABELS)
            calls.append(time.monotonic() - began)

    caller = threading.Thread(target=call)
    caller.start()
    began = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        waiting = []
        for number, (query, items) in enumerate(bodies):
            time.sleep(max(0.0, began + number * given.seconds / given.jobs - time.monotonic()))
            waiting.append(pool.submit(client.submit, query, items, label_token_ids=LABELS))
        jobs = [client.wait(one.result(), timeout=WAIT_SECONDS) for one in waiting]
    stopped.set()
    caller.join()
    # All items of a job share its query, so a job that computes it lacks about one query in its cached tokens.
    missing = [ITEMS * given.tokens - job.cached_tokens for job in jobs]
    took = [(job.finished_at or 0.0) - job.created_at for job in jobs]
    return {
        "queries": given.queries,
        "jobs": given.jobs,
        "workers": given.workers,
        "computed": round(sum(missing) / given.tokens, 1),
        "times_each": round(sum(missing) / given.tokens / given.queries, 2),
        "job_seconds": {"median": _at(took, 50), "p99": _at(took, 99)},
        "call_seconds": {"median": _at(calls, 50), "p99": _at(calls, 99), "calls": len(calls)},
    }


def _at(values: list[float], percentile: float) -> float:
    return round(float(np.percentile(values, percentile)), 3)


def _live(client: Client) -> int:
    try:
        return int(client.models()[0].live_workers)
    except Unreachable:
        return 0


def _with_longer_context(folder: Path, tokens: int) -> Path:
    """Copy the demonstration model, and have its configuration allow longer sequences. Its scores then mean nothing."""
    shutil.copytree(DEMONSTRATION, folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": tokens}))
    return folder


def _other_key(service: Service) -> str:
    """Make a tenant with a key."""
    for command in (
        ["-m", "operations.tenants", "create", "other"],
        ["-m", "operations.keys", "create", "--tenant", "other", "--name", "benchmark"],
    ):
        found = subprocess.run(
            python_command(*command), env=service.variables, check=True, stdout=subprocess.PIPE, text=True
        )
    return next(word for word in found.stdout.split() if word.startswith("sk_sl_"))


if __name__ == "__main__":
    sys.exit(main())
