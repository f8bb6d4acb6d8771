"""Releases of the service as an operator runs them: each from its own source folder, by the command, on one store.

Processes of this release are forked from one that has imported it. Another release is started by Python itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx2

from tests.end_to_end.deployment import Running
from tests.forked.running import DEPLOYED, run, start
from tests.services import free_port, wait_until

ROOT = Path(__file__).parents[2]
KEY = "bootstrap-key-of-a-release-" + "0" * 16
RUN = "from scoreline.command import main; main()"
"""What the script in the image does."""

MODEL_NAME = "demonstration"
LEASE_SECONDS = 3.0
START_SECONDS = 120.0

SENTIMENT: Mapping[str, Any] = {
    "query": "Review: The room was spotless and the staff were lovely.\nSentiment:",
    "items": ["", " The reviewer was", " I felt", " All in all it was"],
    "labels": [" positive", " negative"],
    "apply_softmax": True,
}


class Store:
    """A database and the processes of one release after the other that use it. The logs go to files in a folder."""

    def __init__(self, folder: Path, database_url: str, redis_url: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.port = free_port()
        self.client = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            timeout=60.0,
            trust_env=False,
            headers={"Authorization": f"Bearer {KEY}"},
        )
        self._environment = {
            # Releases compile much the same programs, and the processes of a test run share them.
            **{name: value for name, value in os.environ.items() if name.startswith("JAX_")},
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "SCORELINE_DATABASE_URL": database_url,
            "SCORELINE_REDIS_URL": redis_url,
            "SCORELINE_MODEL": str(ROOT / "demonstration" / "model"),
            "SCORELINE_MODEL_NAME": MODEL_NAME,
            "SCORELINE_PORT": str(self.port),
            "SCORELINE_BOOTSTRAP_KEY": KEY,
            "SCORELINE_LEASE_SECONDS": str(LEASE_SECONDS),
            "SCORELINE_WORKER_FRESH_SECONDS": "5",
            "SCORELINE_CHUNK_ITEMS": "8",
            "SCORELINE_CLAIM_SECONDS": "0.5",
            "SCORELINE_MULTI_ITEM_ENABLE_STARTUP_WARMUP": "false",
        }
        self._processes: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.kill()

    def kill(self) -> None:
        """Kill all processes, as when a machine is gone."""
        for process in self._processes:
            process.kill()
            process.wait()

    def run(self, *words: str, source: Path = ROOT) -> str:
        """Run a command to its end, and return what it printed."""
        if source == ROOT:
            ended = run("scoreline", *words, imports=DEPLOYED, environment=self._environment)
            assert ended.returncode == 0, ended.stderr
            return ended.stdout
        return subprocess.run(
            [sys.executable, "-c", RUN, *words], cwd=source, env=self._of(source), text=True, check=True, stdout=-1
        ).stdout

    def start(self, role: str, source: Path = ROOT) -> Running:
        """Start a role; return once it is ready, if it is an API."""
        name = f"{role}-{len(self._processes)}.log"
        process: Running
        if source == ROOT:
            process = start("scoreline", role, imports=DEPLOYED, log=self.folder / name, environment=self._environment)
        else:
            with (self.folder / name).open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-c", RUN, role], cwd=source, env=self._of(source), stdout=log, stderr=log
                )
        self._processes.append(process)
        if role == "api":
            wait_until(lambda: self._ready(process, name), "the API to be ready", START_SECONDS)
        return process

    def _of(self, source: Path) -> dict[str, str]:
        return self._environment | {"PYTHONPATH": str(source)}

    def _ready(self, process: Running, name: str) -> bool:
        assert process.poll() is None, (self.folder / name).read_text()
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def stop(self, process: Running) -> None:
        """End a process in good order."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0

    def submit(self, body: Mapping[str, Any], idempotency_key: str | None = None) -> str:
        """Submit a job and return its id."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        response = self.client.post("/v1/jobs", json=dict(body), headers=headers)
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job."""
        response = self.client.get(f"/v1/jobs/{job_id}")
        assert response.status_code == 200, response.text
        job: dict[str, Any] = response.json()
        return job

    def scores(self, job_id: str) -> list[list[float]]:
        """Wait until a job has ended, and return its scores."""
        wait_until(lambda: self.job(job_id)["status"] not in ("queued", "running"), f"{job_id} to end", START_SECONDS)
        job = self.job(job_id)
        assert job["status"] == "succeeded", job
        scores: list[list[float]] = job["result"]["scores"]
        return scores


def long_job(number: int) -> dict[str, Any]:
    """Return a job of many chunks, whose scores differ from those of every other number."""
    items = [f" Guest {number}.{n} says that the {('soup', 'bed', 'view')[n % 3]} was" for n in range(400)]
    return {**SENTIMENT, "items": items}
