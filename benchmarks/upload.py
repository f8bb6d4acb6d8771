"""Measure memory while a large job is received and scored: ``python -m benchmarks.upload --items 1000000 --worker``.

The API runs in a process of its own, with the demonstration model and SQLite, or another database that is named and
will be written to. One client uploads random texts as gzip, while another one requests the liveness of the API. Without
``--worker`` only the upload is timed, with it the scoring, too. Prints the memory over time, the slowest liveness
response, and the time to delete the job; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from benchmarks.shapes import DEMONSTRATION
from scoreline.client import Client
from scoreline.server_process import environment, python_command
from tests.services import free_port, wait_until

QUERY = "Review: "
LABELS = (" positive", " negative")
WORDS = (
    *("the", "room", "was", "staff", "lovely", "spotless", "bed", "cold", "water", "never", "again", "would", "come"),
    *("back", "and", "very", "kind", "to", "us", "all", "week", "breakfast", "late", "noisy", "street", "view", "of"),
)
SAMPLE_SECONDS = 1.0
READY_SECONDS = 300.0
"""How long a worker may take to load a model and to compile its programs."""

REQUEST_SECONDS = 600.0


def texts(count: int) -> Iterator[str]:
    """Return ``count`` texts of 5 to 40 words."""
    drawing = random.Random(0)
    return (" ".join(drawing.choices(WORDS, k=drawing.randint(5, 40))) for _ in range(count))


def memory_mb(process_id: int, name: str) -> int:
    """Return a value in MB from the status of a process, such as ``VmRSS``."""
    status = Path(f"/proc/{process_id}/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith(name + ":"))
    return int(line.split()[1]) // 1024


@dataclass(frozen=True)
class Deployment:
    """A running API, and possibly a worker."""

    url: str
    process_ids: dict[str, int]  # by name: ``api``, and ``worker`` if there is one


class Watch(threading.Thread):
    """A thread that samples the memory of the processes and the liveness of the API."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(daemon=True)
        self._process_ids = deployment.process_ids
        self._http = httpx2.Client(base_url=deployment.url, timeout=REQUEST_SECONDS)
        self._stopped = threading.Event()
        self.memory_mb: dict[str, list[int]] = {name: [] for name in self._process_ids}
        self.answer_seconds: list[float] = []

    def run(self) -> None:
        """Sample until stopped."""
        while not self._stopped.wait(SAMPLE_SECONDS):
            began = time.monotonic()
            self._http.get("/livez").raise_for_status()
            self.answer_seconds.append(time.monotonic() - began)
            now = {name: memory_mb(process_id, "VmRSS") for name, process_id in self._process_ids.items()}
            for name, found in now.items():
                self.memory_mb[name].append(found)
            print(f"{len(self.answer_seconds):4} s  {now}", file=sys.stderr)

    def stop(self) -> None:
        """Stop, and wait for the thread."""
        self._stopped.set()
        self.join()


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--database", help="SQLAlchemy URL")
    parser.add_argument("--worker", action="store_true", help="score the items, too")
    given = parser.parse_args()
    with deployment(given.database, worker=given.worker) as running:
        report = _measure(running, given.items)
    print(json.dumps(report))


@contextmanager
def deployment(
    database_url: str | None = None, *, worker: bool = False, model: Path = DEMONSTRATION
) -> Iterator[Deployment]:
    """Run an API process and possibly a worker, by default on SQLite."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        variables = environment(
            SCORELINE_DATABASE_URL=database_url or f"sqlite:///{folder}/scoreline.db",
            SCORELINE_BELL_SOCKET=f"{folder}/bell",
            SCORELINE_PORT=str(port),
            SCORELINE_MODEL=str(model),
        )
        subprocess.run(python_command("-m", "operations.migrate"), env=variables, check=True, stderr=subprocess.DEVNULL)
        modules = {"api": "api"} | ({"worker": "workers.engine_loop"} if worker else {})
        processes = {
            name: subprocess.Popen(python_command("-m", module), env=variables, stderr=subprocess.DEVNULL)
            for name, module in modules.items()
        }
        try:
            path = "readyz" if worker else "livez"
            wait_until(lambda: _succeeds(f"{url}/{path}"), "the API answers", READY_SECONDS)
            yield Deployment(url, {name: process.pid for name, process in processes.items()})
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.wait()


def _measure(running: Deployment, items: int) -> dict[str, object]:
    before = {name: memory_mb(process_id, "VmRSS") for name, process_id in running.process_ids.items()}
    watch = Watch(running)
    watch.start()
    with Client(running.url, timeout=REQUEST_SECONDS) as client:
        began = time.monotonic()
        job = client.upload(QUERY, texts(items), labels=LABELS, apply_softmax=True)
        seconds = time.monotonic() - began
        assert job.total_items == items
        scored = None
        if "worker" in running.process_ids:
            job = client.wait(job.id)
            assert job.status == "succeeded"
            scored = round(time.monotonic() - began, 1)
        began = time.monotonic()
        client.delete(job.id)
        deleted = time.monotonic() - began
    watch.stop()
    return {
        "items": items,
        "prompt_tokens": job.raw["usage"]["prompt_tokens"],
        "seconds": round(seconds, 1),
        "items_per_s": round(items / seconds),
        "scored_after_seconds": scored,
        "memory_mb": {
            name: {
                "before": before[name],
                "over_time": watch.memory_mb[name][:: max(1, len(watch.answer_seconds) // 20)],
                "peak": memory_mb(process_id, "VmHWM"),
            }
            for name, process_id in running.process_ids.items()
        },
        "longest_answer_seconds": round(max(watch.answer_seconds, default=0.0), 3),
        "delete_seconds": round(deleted, 1),
    }


def _succeeds(url: str) -> bool:
    try:
        return httpx2.get(url).is_success
    except httpx2.TransportError:
        return False


if __name__ == "__main__":
    main()
