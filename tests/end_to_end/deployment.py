"""A production deployment: real processes on a private PostgreSQL and Redis.

They are forked from one that has imported the service, because most of the time of a start goes into importing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx2

from tests.forked.running import DEPLOYED, Forked, run, start
from tests.services import free_port, wait_until

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "demonstration" / "model"
KEY = "bootstrap-key-of-a-deployment-" + "0" * 16
AUTHORIZATION = {"Authorization": f"Bearer {KEY}"}
"""The API key of the default tenant."""

Running = subprocess.Popen[bytes] | Forked


class Deployment:
    """API and workers of one deployment as processes, whose logs go to files in ``folder``."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, **settings: object) -> None:
        self.folder = folder
        self.port = free_port()
        self.environment = os.environ | {
            "SCORELINE_DATABASE_URL": database_url,
            "SCORELINE_REDIS_URL": redis_url,
            "SCORELINE_MODEL": str(MODEL),
            "SCORELINE_MODEL_NAME": "demo",
            "SCORELINE_PORT": str(self.port),
            "SCORELINE_BOOTSTRAP_KEY": KEY,
            # What is not about compiling need not compile what it does not use.
            "SCORELINE_MULTI_ITEM_ENABLE_STARTUP_WARMUP": "false",
            **{f"SCORELINE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self.client = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=30.0, trust_env=False, headers=AUTHORIZATION
        )
        self._processes: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, module: str, name: str, arguments: Sequence[str] = (), **environment: str) -> Running:
        process = self._launch(["-m", module, *arguments], self.folder / f"{name}.log", self.environment | environment)
        self._processes.append(process)
        return process

    def _launch(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Running:
        """Start a module of the service."""
        return start(*command, imports=DEPLOYED, log=log, environment=environment)

    def migrate(self) -> None:
        """Bring the database to the newest schema."""
        migration = run("-m", "operations.migrate", imports=DEPLOYED, environment=self.environment)
        assert migration.returncode == 0, migration.stderr

    def start_api(self) -> Running:
        """Start the API and return once it answers that it is ready."""
        process = self._start("api", "api")
        wait_until(lambda: self._alive(process, "api") and self._ready(), "the API to be ready", 120)
        return process

    def start_worker(self, name: str = "worker") -> Running:
        """Start a worker and return once it says that it is ready. The name is that of its log."""
        process = self._start("workers.engine_loop", name)
        wait_until(lambda: self._alive(process, name) and self.events(name, "ready"), f"{name} to be ready", 120)
        return process

    def start_deliverer(self) -> Running:
        """Start the process that delivers webhooks, and return once it says that it is ready."""
        process = self._start("workers.delivery", "deliver")
        wait_until(lambda: self._alive(process, "deliver") and self.events("deliver", "ready"), "deliverer to be ready")
        return process

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """Return the lines of one event that a process has logged so far."""
        lines = [json.loads(line) for line in self.log(name).splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def log(self, name: str) -> str:
        """Return what a process has written to its log so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _alive(self, process: Running, name: str) -> bool:
        assert process.poll() is None, f"{name} ended with {process.returncode}:\n{self.log(name)[-4000:]}"
        return True

    def _ready(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def submit(self, body: Mapping[str, object]) -> str:
        """Submit a job and return its id."""
        response = self.client.post("/v1/jobs", json=dict(body))
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the job object."""
        response = self.client.get(f"/v1/jobs/{job_id}")
        assert response.status_code == 200, response.text
        job: dict[str, Any] = response.json()
        return job

    def result(self, job_id: str, seconds: float = 120.0) -> dict[str, Any]:
        """Wait until the job has succeeded, and return its result."""

        def finished() -> bool:
            return self.job(job_id)["status"] not in ("queued", "running")

        wait_until(finished, f"{job_id} to end", seconds)
        job = self.job(job_id)
        assert job["status"] == "succeeded", job
        result: dict[str, Any] = job["result"]
        return result
