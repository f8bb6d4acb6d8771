"""An API of several processes, as ``python -m api`` starts it, and clients of each of the processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from checkpoints.files import read_model_card
from scoring.tokenizing.tokenization import TextTokenizer
from settings.store import StoreSettings
from tests.api.serving import DEADLINE_SECONDS, KEY, StandInWorker
from tests.scoreline.running import gone
from tests.services import free_port, wait_until

PROCESSES = 2
START_SECONDS = 90.0  # far more than is needed, so that tests pass on a busy machine


class SeveralProcesses:
    """The API with its parent's and its children's log in a file."""

    def __init__(self, model: Path, database_url: str, folder: Path, /, **settings: object) -> None:
        """settings: None leaves one out."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.database_url = database_url
        self.bell_socket = str(folder / "bell")
        self._model = model
        self._log = folder / "log"
        given: dict[str, object] = {
            "model": model,
            "model_name": "tiny",
            "database_url": database_url,
            "bell_socket": self.bell_socket,
            "bootstrap_key": KEY,
            "port": self.port,
            "api_processes": PROCESSES,
        }
        given |= settings
        with self._log.open("wb") as log:
            self.parent = subprocess.Popen(
                [sys.executable, "-m", "api"],
                env=os.environ | {f"SCORELINE_{key.upper()}": str(value) for key, value in given.items() if value},
                stderr=log,
            )

    def log(self) -> list[dict[str, Any]]:
        """Return what was logged so far."""
        *lines, _incomplete = self._log.read_text().split("\n")
        return [json.loads(line) for line in lines]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of an event."""
        return [line for line in self.log() if line["event"] == event]

    def children(self) -> dict[int, int]:
        """Return the ids of the children that were started last, by number."""
        return {line["process"]: line["pid"] for line in self.logged("a process of the API was started")}

    def wait_until_serving(self, times: int = PROCESSES) -> None:
        """Return when children have begun to serve so many times."""

        def served() -> bool:
            assert self.parent.poll() is None, self._log.read_text()
            return len(self.logged("serving")) >= times and self._answers()

        wait_until(served, f"children have begun to serve {times} times", START_SECONDS)

    def _answers(self) -> bool:
        with suppress(httpx2.TransportError):
            return httpx2.get(f"{self.url}/livez", trust_env=False).is_success
        return False

    def clients(self) -> dict[int, httpx2.Client]:
        """Return a client of each child, by its number. A client keeps its connection."""
        found: dict[int, httpx2.Client] = {}
        spare = []
        while len(found) < PROCESSES:
            client = httpx2.Client(
                base_url=self.url,
                timeout=DEADLINE_SECONDS,
                headers={"Authorization": f"Bearer {KEY}"},
                limits=httpx2.Limits(max_connections=1, keepalive_expiry=3_600),
                trust_env=False,
            )
            number = self.process_of(client)
            if number in found:
                spare.append(client)
            else:
                found[number] = client
        for client in spare:
            client.close()
        return found

    def process_of(self, client: httpx2.Client) -> int:
        """Return the number of the process that answers a client."""
        request_id = uuid.uuid4().hex
        client.get("/livez", headers={"x-request-id": request_id})

        def lines() -> list[dict[str, Any]]:
            return [line for line in self.logged("request") if line["request_id"] == request_id]

        wait_until(lines, "the request is logged")
        return int(lines()[0]["process"])

    def worker(self) -> StandInWorker:
        """Return a worker, not started."""
        card = read_model_card(self._model, "tiny", None, TextTokenizer.load(self._model))
        return StandInWorker(StoreSettings(database_url=self.database_url), card, self.bell_socket)

    def end(self, with_signal: signal.Signals) -> int:
        """Send the parent a signal, wait until all have ended, and return the exit status of the parent."""
        children = list(self.children().values())
        self.parent.send_signal(with_signal)
        status = self.parent.wait(DEADLINE_SECONDS)
        wait_until(lambda: gone(children), "the children have ended")
        return status

    def close(self) -> None:
        """Kill what still runs."""
        self.parent.kill()
        self.parent.wait()


@contextmanager
def several_processes(
    model: Path, database_url: str, folder: Path, /, **settings: object
) -> Iterator[SeveralProcesses]:
    """Run the API. Yields when all processes serve."""
    folder.mkdir(parents=True, exist_ok=True)
    api = SeveralProcesses(model, database_url, folder, **settings)
    try:
        api.wait_until_serving()
        yield api
    finally:
        api.close()


def samples(client: httpx2.Client) -> dict[str, float]:
    """Return the metrics that a client is told, by name and labels."""
    return {
        " ".join([sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
    }
