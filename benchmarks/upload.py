"""The API's memory while it receives a large job: ``python -m benchmarks.upload --items 1000000``.

An API process of its own, on the demonstration model's tokenizer and SQLite unless another database is named (one that
may be written to), and no worker. One client uploads made-up texts as gzip while another asks the same process for its
liveness. Prints memory over time, how long the longest of those answers took, and how long deleting the job took; the
last line is JSON.
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
from pathlib import Path

import httpx2

from benchmarks.shapes import DEMONSTRATION
from scoreline.client import Client
from scoreline.server_rooms import environment, python_command
from tests.services import free_port, wait_until

QUERY = "Review: "
LABELS = (" positive", " negative")
WORDS = (
    *("the", "room", "was", "staff", "lovely", "spotless", "bed", "cold", "water", "never", "again", "would", "come"),
    *("back", "and", "very", "kind", "to", "us", "all", "week", "breakfast", "late", "noisy", "street", "view", "of"),
)
SAMPLE_SECONDS = 1.0
REQUEST_SECONDS = 600.0


def texts(count: int) -> Iterator[str]:
    """So many texts of 5 to 40 words."""
    drawing = random.Random(0)
    return (" ".join(drawing.choices(WORDS, k=drawing.randint(5, 40))) for _ in range(count))


def memory_mb(process_id: int, name: str) -> int:
    """A process's memory by the name that the kernel has for it."""
    status = Path(f"/proc/{process_id}/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith(name + ":"))
    return int(line.split()[1]) // 1024


class Watch(threading.Thread):
    """Samples a process's memory, and asks it whether it is alive."""

    def __init__(self, process_id: int, url: str) -> None:
        super().__init__(daemon=True)
        self._process_id = process_id
        self._http = httpx2.Client(base_url=url, timeout=REQUEST_SECONDS)
        self._stopped = threading.Event()
        self.memory_mb: list[int] = []
        self.answer_seconds: list[float] = []

    def run(self) -> None:
        """Watch until stopped."""
        while not self._stopped.wait(SAMPLE_SECONDS):
            began = time.monotonic()
            self._http.get("/livez").raise_for_status()
            self.answer_seconds.append(time.monotonic() - began)
            self.memory_mb.append(memory_mb(self._process_id, "VmRSS"))
            print(f"{len(self.memory_mb):4} s  {self.memory_mb[-1]} MB", file=sys.stderr)

    def stop(self) -> None:
        """Stop and wait for it."""
        self._stopped.set()
        self.join()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--database", help="SQLAlchemy URL")
    given = parser.parse_args()
    with only_an_api(given.database) as (url, process_id):
        report = _measure(process_id, url, given.items)
    print(json.dumps(report))


@contextmanager
def only_an_api(database_url: str | None = None) -> Iterator[tuple[str, int]]:
    """An API process without a worker: its address and its process id. Its database is SQLite unless one is named."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        variables = environment(
            SCORELINE_DATABASE_URL=database_url or f"sqlite:///{folder}/scoreline.db",
            SCORELINE_BELL_SOCKET=f"{folder}/bell",
            SCORELINE_PORT=str(port),
            SCORELINE_MODEL=str(DEMONSTRATION),
        )
        subprocess.run(python_command("-m", "jobs.migrate"), env=variables, check=True, stderr=subprocess.DEVNULL)
        api = subprocess.Popen(python_command("-m", "api"), env=variables, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: _answers(url), "the API answers")
            yield url, api.pid
        finally:
            api.terminate()
            api.wait()


def _measure(process_id: int, url: str, items: int) -> dict[str, object]:
    before = memory_mb(process_id, "VmRSS")
    watch = Watch(process_id, url)
    watch.start()
    with Client(url, timeout=REQUEST_SECONDS) as client:
        began = time.monotonic()
        job = client.upload(QUERY, texts(items), labels=LABELS, apply_softmax=True)
        seconds = time.monotonic() - began
        assert job.total_items == items
        began = time.monotonic()
        client.delete(job.id)
        deleted = time.monotonic() - began
    watch.stop()
    return {
        "items": items,
        "prompt_tokens": job.raw["usage"]["prompt_tokens"],
        "seconds": round(seconds, 1),
        "items_per_s": round(items / seconds),
        "memory_mb": {
            "before": before,
            "over_time": watch.memory_mb[:: max(1, len(watch.memory_mb) // 20)],
            "peak": memory_mb(process_id, "VmHWM"),
        },
        "longest_answer_seconds": round(max(watch.answer_seconds, default=0.0), 3),
        "delete_seconds": round(deleted, 1),
    }


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/livez").is_success
    except httpx2.TransportError:
        return False


if __name__ == "__main__":
    main()
