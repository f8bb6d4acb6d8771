"""Ctrl-C ends calls that wait."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scoreline import Client
from tests.scoreline.running import Up
from tests.services import wait_until


@pytest.mark.parametrize(
    "call",
    [
        "frames.score(table, 'review', **asked)",
        "frames.score(table, 'review', output=sys.argv[2], **asked)",
        "list(Client(asked['url']).map([('Review: ', ['a'])], labels=asked['labels']))",
    ],
)
def test_ctrl_c_ends_a_call_at_once_and_cancels_its_jobs_where_polars_hears_it_first(
    shared_up: Up, client: Client, asked: dict[str, Any], tmp_path: Path, call: str
) -> None:
    program = f"""
import json, sys
import polars as pl
from scoreline import Client, frames
table, asked = pl.DataFrame({{"review": ["a"]}}), json.loads(sys.argv[1])
{call}
"""
    command = [sys.executable, "-c", program, json.dumps(asked), str(tmp_path / "scored.parquet")]
    with shared_up.worker_frozen():
        running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: any(client.jobs(status="queued")), "its job waits")
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=20)
        assert "KeyboardInterrupt" in said
        for job in client.jobs(status="queued"):  # A call with an output, or a map, may be gone on with.
            assert "output" in call or "map" in call
            client.cancel(job.id)
