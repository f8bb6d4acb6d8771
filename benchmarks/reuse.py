"""Measure what kept scores save and cost: ``python -m benchmarks.reuse --items 100000``.

An API and a worker run on a private PostgreSQL (or SQLite, with ``--database sqlite``). A job of random texts is
submitted as JSON lines and scored, then submitted again unchanged, and again with one item of a hundred changed. The
same is done with a service that keeps nothing, for the time of the first job. Then both services get new items, of
which nothing is kept, for the time of an acceptance.

Prints the seconds from the first byte to the 202 (``accept``) and to the end of the job (``end``); the last line is
JSON. The exit status is 1 if scores differ in any bit, or other items are computed than those that changed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.batches.__main__ import KEY, Service
from benchmarks.pairs import WORKER
from benchmarks.upload import LABELS, QUERY, READY_SECONDS, WORDS
from scoreline.client import Client, Unreachable
from tests.services import wait_until

JOB_SECONDS = 7_200.0


def texts(count: int, seed: int, words: int) -> list[str]:
    """Return texts of about so many words, nearly all different."""
    drawing = random.Random(seed)
    return [" ".join(drawing.choices(WORDS, k=drawing.randint(words // 2, words * 3 // 2))) for _ in range(count)]


class Measured:
    """A service, and the seconds that its jobs took."""

    def __init__(self, stack: ExitStack, database: str, *, keeps: bool, model: Path | None) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scoreline-reuse-")))
        variables = {"SCORELINE_REUSE_SCORES_SECONDS": "86400" if keeps else "0"}
        if model is not None:
            variables["SCORELINE_MODEL"] = str(model)
        self.service = Service(stack, folder, database, WORKER, **variables)
        self.client = stack.enter_context(Client(self.service.url, api_key=KEY, timeout=JOB_SECONDS))
        self.name = "keeping" if keeps else "not keeping"
        wait_until(self._is_ready, "the service is ready", READY_SECONDS)

    def job(self, what: str, items: list[str]) -> dict[str, Any]:
        """Submit a job, and return its times, scores and number of reused items."""
        began = time.monotonic()
        job = self.client.upload(QUERY, iter(items), labels=LABELS)
        accepted = time.monotonic() - began
        job = self.client.wait(job, timeout=JOB_SECONDS)
        ended = time.monotonic() - began
        scores = [one.scores for one in self.client.scores(job)]
        print(f"{self.name}, {what}: accepted after {accepted:.2f} s, ended after {ended:.2f} s", flush=True)
        return {"accept": accepted, "end": ended, "scores": scores, "reused": job.reused_items}

    def accept(self, items: list[str]) -> float:
        """Submit a job, cancel it, and return how long its acceptance took."""
        began = time.monotonic()
        job = self.client.upload(QUERY, iter(items), labels=LABELS)
        seconds = time.monotonic() - began
        self.client.cancel(job)
        print(f"{self.name}, new items: accepted after {seconds:.2f} s", flush=True)
        return seconds

    def _is_ready(self) -> bool:
        try:
            return bool(self.client.models()[0].live_workers)
        except Unreachable:
            return False


def main() -> int:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--words", type=int, default=20, help="of an item, on average")
    parser.add_argument("--rounds", type=int, default=3, help="of the acceptance of new items")
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--model", type=Path, help="a folder with a model; the demonstration model by default")
    given = parser.parse_args()
    items = texts(given.items, 0, given.words)
    changed = list(items)
    for place in range(0, len(items), 100):
        changed[place] = f"{changed[place]} at number {place}"
    with ExitStack() as stack:
        keeping = Measured(stack, given.database, keeps=True, model=given.model)
        first, again, after_change = (
            keeping.job(what, wanted)
            for what, wanted in (("first", items), ("unchanged", items), ("one of a hundred changed", changed))
        )
        is_right = again["scores"] == first["scores"] and again["reused"] == len(items)
        is_right &= after_change["reused"] >= len(items) - len(range(0, len(items), 100))
        is_right &= all(
            one == other
            for place, (one, other) in enumerate(zip(after_change["scores"], first["scores"], strict=True))
            if place % 100
        )
        accepts: dict[str, list[float]] = {"keeping": [], "not keeping": []}
        if given.rounds:
            other = Measured(stack, given.database, keeps=False, model=given.model)
            for number in range(given.rounds):
                new = texts(given.items, 1 + number, given.words)
                # Whoever comes second meets the end of the first one's job.
                for one in (keeping, other) if number % 2 else (other, keeping):
                    accepts[one.name].append(one.accept(new))
    report: dict[str, Any] = {
        "items": given.items,
        "database": given.database,
        "seconds": {
            name: {which: round(job[which], 2) for which in ("accept", "end")}
            for name, job in (("first", first), ("unchanged", again), ("changed", after_change))
        },
        "times_faster": round(first["end"] / again["end"], 1),
        "is_right": is_right,
    }
    if given.rounds:
        medians = {name: round(statistics.median(seconds), 2) for name, seconds in accepts.items()}
        report["accept_new"] = medians | {"ratio": round(medians["keeping"] / medians["not keeping"], 3)}
    print(json.dumps(report))
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
