"""Measure a batch of many requests over few queries: ``python -m benchmarks.batches --lines 100000 --queries 1000``.

An API and a worker run in processes of their own, on a private PostgreSQL (or SQLite, with ``--database sqlite``). The
worker takes no time, and remembers as many queries as ``--remembered`` says. The lines are shuffled, and every
hundredth is broken in one of ten ways; with ``--kind decisions`` they ask about states, and none is broken. OpenAI's
client uploads them, waits, and reads the answers, each of which is checked: its place, its ``custom_id``, and its
logits or its error. With ``--kill``, API, worker and database are killed (SIGKILL) one after another meanwhile, and
started again. With ``--client scoreline``, our own client does all that, and its memory is measured instead of that of
the service.

Prints the memory of the processes over time; the last line is JSON. ``prefills`` counts the answers whose query the
worker did not remember. The exit status is 1 if an answer is wrong, missing or double.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import openai
from openai import OpenAI
from openai.types import Batch

from benchmarks.batches import client as own_client
from benchmarks.batches.lines import BROKEN, KINDS, LABELS, DecisionLines, Lines, paired
from benchmarks.shapes import DEMONSTRATION
from benchmarks.upload import Deployment, Watch, memory_mb
from scoreline.server_process import environment, python_command
from tests.services import PostgresServer, free_port, wait_until

POLL_SECONDS = 1.0
ASKED_EVERY = 1_000
"""Every so many lines of decisions are asked by themselves, too, and must have the same answer."""
KEY = "bootstrap-key-of-a-benchmark-" + "0" * 16
KILLS = (("api", 0.15), ("worker", 0.35), ("database", 0.55))
"""What is killed, and after which share of the lines is written."""


def quick_worker(remembered: int) -> list[str]:
    """Return what starts a worker that takes no time, and remembers so many queries."""
    return ["-m", "benchmarks.batches.worker", str(remembered)]


class Service:
    """The processes, which can be killed and started again."""

    def __init__(
        self, stack: ExitStack, folder: Path, database: str, worker: Sequence[str], workers: int = 1, **variables: str
    ) -> None:
        """worker: Python's arguments that start one. workers: how many. variables: further ones of the environment."""
        self.postgres = stack.enter_context(closing(PostgresServer(options={}))) if database == "postgres" else None
        url = f"sqlite:///{folder}/scoreline.db" if self.postgres is None else ""
        if self.postgres is not None:
            url = self.postgres.url(self.postgres.create_database())
        self.port = free_port()
        self.variables = environment(
            SCORELINE_DATABASE_URL=url,
            SCORELINE_BELL_SOCKET=f"{folder}/bell",
            SCORELINE_PORT=str(self.port),
            **{
                "SCORELINE_MODEL": str(DEMONSTRATION),
                "SCORELINE_MODEL_NAME": "demonstration",
                "SCORELINE_BOOTSTRAP_KEY": KEY,
                "SCORELINE_LEASE_SECONDS": "5",
                **variables,
            },
        )
        migrate = python_command("-m", "operations.migrate")
        subprocess.run(migrate, env=self.variables, check=True, stderr=subprocess.DEVNULL)
        names = ["worker", *(f"worker {number}" for number in range(2, workers + 1))]
        self._commands = {"api": ["-m", "api"], **{name: list(worker) for name in names}}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(self._stop)
        for name in self._commands:
            self.start(name)

    @property
    def url(self) -> str:
        """The URL of the API."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, name: str) -> None:
        """Start a process."""
        command = python_command(*self._commands[name])
        self.processes[name] = subprocess.Popen(command, env=self.variables, stderr=subprocess.DEVNULL)

    def kill(self, name: str, away_seconds: float = 0) -> None:
        """Kill a process or the database, and start it again; a process may be away for some time."""
        print(f"the {name} is killed", file=sys.stderr)
        if name == "database":
            if self.postgres is not None:
                self.postgres.kill()
                self.postgres.start()
            return
        self.processes[name].kill()
        self.processes[name].wait()
        time.sleep(away_seconds)
        self.start(name)

    def _stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()


def main() -> int:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="scores")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--remembered", type=int, default=1_000, help="queries that the worker remembers")
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--kill", action="store_true", help="kill API, worker and database meanwhile")
    parser.add_argument("--client", choices=("openai", "scoreline"), default="openai")
    given = parser.parse_args()
    if given.kill and given.client == "scoreline":
        parser.error("--kill needs --client openai")
    lines = KINDS[given.kind](given.lines, given.queries)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scoreline-batches-")))
        service = Service(stack, folder, given.database, quick_worker(given.remembered))
        client = OpenAI(api_key=KEY, base_url=f"{service.url}/v1", timeout=600, max_retries=5)
        wait_until(lambda: _answers(client), "the API answers", 120)
        if given.client == "scoreline":
            report = asdict(own_client.measure(service.url, KEY, lines, _written(lines, folder)))
        else:
            report = _measure(service, client, lines, folder, kill=given.kill)
    print(json.dumps({"database": given.database, "queries": given.queries, "killed": given.kill, **report}))
    return int(bool(report["wrong"]))


def _answers(client: OpenAI) -> bool:
    try:
        client.files.list(limit=1)
    except openai.APIError:
        return False
    return True


def _written(lines: Lines, folder: Path) -> Path:
    path = folder / "lines.jsonl"
    with path.open("wb") as file:
        file.writelines(lines)
    return path


def _measure(service: Service, client: OpenAI, lines: Lines, folder: Path, *, kill: bool) -> dict[str, Any]:
    path = _written(lines, folder)
    watch = None if kill else Watch(Deployment(service.url, {n: p.pid for n, p in service.processes.items()}))
    before = {name: memory_mb(process.pid, "VmRSS") for name, process in service.processes.items()}
    if watch is not None:
        watch.start()
    began = time.monotonic()
    with path.open("rb") as file:
        uploaded = client.files.create(file=("lines.jsonl", file), purpose="batch", extra_headers=_key("file"))
    upload_seconds = time.monotonic() - began
    endpoint: Any = lines.endpoint
    batch = client.batches.create(
        input_file_id=uploaded.id, endpoint=endpoint, completion_window="24h", extra_headers=_key("batch")
    )
    kills = list(KILLS) if kill else []

    def on_progress(share: float) -> None:
        while kills and share >= kills[0][1]:
            service.kill(kills.pop(0)[0])

    batch = _ended(client, batch, on_progress)
    seconds = time.monotonic() - began
    if watch is not None:
        watch.stop()
    peaks = {name: memory_mb(process.pid, "VmHWM") for name, process in service.processes.items()}
    checked = _check(client, batch, lines)
    return {
        "lines": lines.count,
        "bytes": uploaded.bytes,
        "status": batch.status,
        "upload_seconds": round(upload_seconds, 1),
        "seconds": round(seconds, 1),
        **checked,
        "memory_mb": {
            name: {
                "before": before[name],
                "over_time": [] if watch is None else watch.memory_mb[name][:: max(1, len(watch.answer_seconds) // 20)],
                "peak": peaks[name],
            }
            for name in before
        },
        "longest_answer_seconds": None if watch is None else round(max(watch.answer_seconds, default=0.0), 3),
    }


def _key(name: str) -> dict[str, str]:
    return {"Idempotency-Key": f"benchmark-{name}"}


def _ended(client: OpenAI, batch: Batch, on_progress: Callable[[float], None]) -> Batch:
    """Return the batch when it has ended."""
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(POLL_SECONDS)
        try:
            batch = client.batches.retrieve(batch.id)
        except openai.APIError as error:
            print(f"no answer: {error}", file=sys.stderr)
            continue
        counts = batch.request_counts
        assert counts is not None
        print(f"{batch.status}: {counts.completed} of {counts.total}", file=sys.stderr)
        on_progress((counts.completed + counts.failed) / counts.total)
    return batch


def _check(client: OpenAI, batch: Batch, lines: Lines) -> dict[str, Any]:
    """Compare each line of both files with what it must be."""
    good = [number for number in range(lines.count) if lines.error(number) is None]
    bad = [number for number in range(lines.count) if lines.error(number) is not None]
    wrong = prefills = 0
    for number, one in paired(good, _read(client, batch.output_file_id)):
        if number is None or one is None:
            wrong += 1
            continue
        body = one["response"]["body"]
        wrong += one["custom_id"] != lines.custom_id(number) or not lines.is_right(number, body)
        if isinstance(lines, DecisionLines) and number % ASKED_EVERY == 0:
            asked = client.post(lines.endpoint.removeprefix("/v1"), cast_to=dict[str, Any], body=lines.body(number))
            wrong += (asked["answers"], asked["diagnostics"]) != (body["answers"], body["diagnostics"])
        prefills += lines.cached_tokens(body) == 0
    for number, one in paired(bad, _read(client, batch.error_file_id)):
        if number is None or one is None:
            wrong += 1
            continue
        error = one["response"]["body"]["error"]
        found = (one["response"]["status_code"], error["code"], error["param"])
        wrong += found != lines.error(number) or not one["id"].endswith(f"_{number}")
    counts = batch.request_counts
    assert counts is not None
    missing = (counts.total, counts.completed, counts.failed) != (lines.count, len(good), len(bad))
    wrong += missing
    return {
        "completed": counts.completed,
        "failed": counts.failed,
        "ways_of_breaking": len(BROKEN),
        "labels": len(LABELS),
        "prefills": prefills,
        "wrong": wrong,
    }


def _read(client: OpenAI, file_id: str | None) -> Iterator[dict[str, Any]]:
    if file_id is None:
        return
    with client.files.with_streaming_response.content(file_id) as response:
        for text in response.iter_lines():
            yield json.loads(text)


if __name__ == "__main__":
    sys.exit(main())
