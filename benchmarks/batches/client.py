"""The memory of our own client while it uploads a batch, waits for it and reads the results."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.batches.lines import Lines
from benchmarks.upload import memory_mb
from scoreline.client import Batch, BatchResult, Client

SAMPLES = 20


@dataclass
class Report:
    """What was found. All memory is that of this process, in MB."""

    before_mb: int
    upload_mb: int = 0  # at the end of the upload
    waiting_mb: list[int] = field(default_factory=list)
    reading_mb: list[int] = field(default_factory=list)
    peak_mb: int = 0
    seconds: float = 0.0
    results: int = 0
    wrong: int = 0  # results out of order, of another line, or with other logits or another error


def measure(url: str, key: str, lines: Lines, path: Path) -> Report:
    """Send a file of lines as a batch, wait for its end, and check each result as it is read."""
    report, began = Report(_memory()), time.monotonic()
    with Client(url, api_key=key) as client:
        batch = client.create_batch(client.upload_file(path))
        report.upload_mb = _memory()

        def on_progress(seen: Batch) -> None:
            report.waiting_mb.append(_memory())
            print(f"{seen.status}: {seen.scored_items} of {lines.count}", file=sys.stderr)

        ended = client.wait_batch(batch, progress=on_progress)
        for number, one in enumerate(client.batch_results(ended)):
            report.wrong += not _is_right(one, number, lines)
            report.results += 1
            if number % max(1, lines.count // SAMPLES) == 0:
                report.reading_mb.append(_memory())
    report.wrong += lines.count - report.results
    report.waiting_mb = report.waiting_mb[:: max(1, len(report.waiting_mb) // SAMPLES)]
    report.peak_mb = memory_mb(os.getpid(), "VmHWM")
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _is_right(one: BatchResult, number: int, lines: Lines) -> bool:
    wanted = lines.error(number)
    if one.number != number:
        return False
    if wanted is not None:
        return one.error is not None and one.error.code == wanted[1]
    is_line = one.custom_id == lines.custom_id(number) and one.error is None
    return is_line and lines.is_right(number, one.raw["response"]["body"])


def _memory() -> int:
    return memory_mb(os.getpid(), "VmRSS")
