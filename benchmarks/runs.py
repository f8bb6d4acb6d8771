"""Measure ``scoreline run`` and interrupt it: ``python -m benchmarks.runs --pairs 100000 --queries 1000``.

An API and a worker run in processes of their own, on a private PostgreSQL (or SQLite, with ``--database sqlite``). The
worker takes no time, and remembers 1,000 queries. The input is JSON lines of token ids, whose queries are shuffled.
With ``--interrupt``, the command is interrupted by Ctrl-C three times and killed once, and started again each time. The
API and the worker are killed and started again once, while the command goes on.

Afterwards, every row of the output is compared with what it must be, and the jobs of the service are counted. Prints
the memory of the command and of the API over time; the last line is JSON. The exit status is 1 if a row is wrong,
missing or double, or was scored twice.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.batches.__main__ import KEY, Service, quick_worker
from benchmarks.batches.lines import QUERY_TOKENS, Lines, logits
from benchmarks.upload import READY_SECONDS, memory_mb
from scoreline.client import Client, Unreachable
from scoreline.server_process import python_command
from tests.services import wait_until

REMEMBERED = 1_000
SAMPLE_SECONDS = 0.5
COMMAND = ("-c", "from scoreline.command import main; main()")
LABELS = (" yes", " no")
INTERRUPTIONS = (
    (0.1, signal.SIGINT),
    (0.2, signal.SIGINT),
    (0.3, None),  # the service is killed instead
    (0.4, signal.SIGKILL),
    (0.5, signal.SIGINT),
)
"""After which share of the rows is written, and by which signal, the command is stopped."""


@dataclass(slots=True)
class Memory:
    """The memory of the command and of the API, in MB, sampled while the command runs."""

    command: list[int] = field(default_factory=list)
    api: list[int] = field(default_factory=list)


class Command:
    """``scoreline run``, which can be stopped and started again."""

    def __init__(self, folder: Path, service: Service, window_rows: int) -> None:
        self.target = folder / "scores.jsonl"
        self.memory = Memory()
        self.starts = 0
        self.said: list[str] = []
        self._service = service
        labels = [word for label in LABELS for word in ("--label", label)]
        columns = ["--query-column", "query", "--item-column", "item", *labels]
        options = [*columns, "--window-rows", str(window_rows), "--json", "-o", str(self.target)]
        self._command = python_command(*COMMAND, "run", str(folder / "pairs.jsonl"), *options)
        self._variables = service.variables | {"SCORELINE_URL": service.url, "SCORELINE_API_KEY": KEY}
        self._rows_before = 0
        self._process: subprocess.Popen[str] | None = None
        self._sampler: threading.Thread | None = None

    def start(self) -> None:
        """Start it."""
        self.starts += 1
        self._rows_before = self._rows()
        self._process = subprocess.Popen(
            self._command, env=self._variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._sampler = threading.Thread(target=self._sample, args=(self._process,), daemon=True)
        self._sampler.start()

    def _sample(self, process: subprocess.Popen[str]) -> None:
        while process.poll() is None:
            with suppress(OSError, ValueError):  # it, or the API, has just ended
                command, api = (memory_mb(p.pid, "VmRSS") for p in (process, self._service.processes["api"]))
                self.memory.command.append(command)
                self.memory.api.append(api)
            time.sleep(SAMPLE_SECONDS)

    def _rows(self) -> int:
        unfinished = self.target.with_name(self.target.name + ".part")
        return unfinished.read_bytes().count(b"\n") if unfinished.exists() else 0

    def expect_more(self) -> None:
        """Have :meth:`wait_for_rows` wait for more rows than are written now."""
        self._rows_before = self._rows()

    def wait_for_rows(self, rows: int) -> None:
        """Wait until so many rows are written, and more than when it was started or :meth:`expect_more` was called."""

        def written() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"the command has ended: {self._process.communicate()[0]}")
            return self._rows() >= max(rows, self._rows_before + 1)

        wait_until(written, f"{rows} rows are written", 600)

    def stop(self, number: signal.Signals) -> None:
        """Send a signal, and wait for the end."""
        assert self._process is not None
        self._process.send_signal(number)
        began = time.monotonic()
        self.finish()
        print(f"{number.name}: ended after {time.monotonic() - began:.2f} s", file=sys.stderr)

    def finish(self) -> int:
        """Wait for the end, and return the exit code."""
        assert self._process is not None
        assert self._sampler is not None
        said, _ = self._process.communicate()
        self._sampler.join()
        self.said += said.splitlines()
        print(said, file=sys.stderr)
        return self._process.returncode


def main() -> int:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--window-rows", type=int, default=20_000)
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--interrupt", action="store_true")
    given = parser.parse_args()
    # A shell has its background processes ignore Ctrl-C, and what they start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pairs = Lines(given.pairs, given.queries)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scoreline-runs-")))
        _write(pairs, folder / "pairs.jsonl")
        service = Service(stack, folder, given.database, quick_worker(REMEMBERED))
        client = stack.enter_context(Client(service.url, api_key=KEY))
        wait_until(lambda: _is_ready(client), "the service is ready", READY_SECONDS)
        command = Command(folder, service, given.window_rows)
        began = time.monotonic()
        command.start()
        if given.interrupt:
            _interrupt(command, service, given.pairs)
        code = command.finish()
        seconds = time.monotonic() - began
        report = {"exit_code": code, "seconds": round(seconds, 1), **_check(pairs, command, client)}
    print(json.dumps({"pairs": given.pairs, "queries": given.queries, "interrupted": given.interrupt, **report}))
    return int(code != 0 or report["wrong"] or report["scored_items"] != given.pairs)


def _write(pairs: Lines, path: Path) -> None:
    with path.open("w") as file:
        for number in range(pairs.count):
            query, item = pairs.tokens(number)
            print(json.dumps({"number": number, "query": query, "item": item}), file=file)


def _is_ready(client: Client) -> bool:
    try:
        return bool(client.models()[0].live_workers)
    except Unreachable:
        return False


def _interrupt(command: Command, service: Service, pairs: int) -> None:
    for share, number in INTERRUPTIONS:
        command.wait_for_rows(round(share * pairs))  # the jobs of the next window are under way then
        if number is None:
            service.kill("api")
            service.kill("worker")
            command.expect_more()  # so that it has gone on before it is stopped itself
            continue
        command.stop(number)
        command.start()


def _check(pairs: Lines, command: Command, client: Client) -> dict[str, Any]:
    """Compare each row with what it must be, and count what was scored."""
    wrong = rows = 0
    with command.target.open() as file:
        for number, line in enumerate(file):
            row = json.loads(line)
            query, item = pairs.tokens(number)
            expected = [math.exp(float(np.float32(-value) / np.float32(100))) for value in logits(query, item, 2)]
            right = (row["number"], row["query"], row["item"]) == (number, query, item)
            wrong += not (right and np.allclose([row["yes"], row["no"]], expected, rtol=1e-12))
            rows += 1
    jobs = [(job.total_items, job.cached_tokens) for job in client.jobs()]
    figures = json.loads(command.said[-1])
    memory = command.memory
    step = max(1, len(memory.command) // 20)
    return {
        "rows": rows,
        "wrong": wrong + abs(rows - pairs.count),
        "jobs": len(jobs),
        "scored_items": sum(items for items, _ in jobs),
        "prefills": sum(cached < items * QUERY_TOKENS for items, cached in jobs),
        "starts": command.starts,
        "own_seconds": figures["seconds"],
        "memory_mb": {
            "command": {"over_time": memory.command[::step], "peak": max(memory.command, default=0)},
            "api": {"over_time": memory.api[::step], "peak": max(memory.api, default=0)},
        },
    }


if __name__ == "__main__":
    sys.exit(main())
