"""A deployment whose processes can be killed or frozen, and whose workers score without a model."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx2

from tests.end_to_end.deployment import MODEL, ROOT, Deployment, Running
from tests.faults.injection.places import START_SWEEPING
from tests.faults.injection.points import Point, to_text
from tests.services import wait_until

SECONDS = 60.0  # a recovery must not take longer; far more than is needed, so that tests pass on a slow machine

LOOPBACK = "127.0.0.0/8"


class FaultyDeployment(Deployment):
    """An API, workers and deliverers, each a real process in which fail points may be installed.

    Unless told otherwise, workers poll and sweep every tenth of a second.
    """

    def __init__(self, folder: Path, database_url: str, redis_url: str, **settings: object) -> None:
        quick = {"poll_seconds": 0.1, "sweep_seconds": 0.1, "lease_seconds": 30}
        super().__init__(folder, database_url, redis_url, **quick | settings)
        self._started = 0

    def launch_worker(
        self,
        *points: Point,
        mode: str = "quick",
        for_api: bool = False,
        wait: bool = True,
        clock: float = 0.0,
        idle_seconds: int | None = None,
        **settings: object,
    ) -> Launched:
        """Start a worker.

        mode: see :mod:`tests.workers.made_up_worker`. for_api: serve the model of the API instead of the tests' own.
        wait: return only once it is ready. clock: seconds by which its own clock is ahead. idle_seconds: time after
        which PostgreSQL ends its transactions if it is silent.
        """
        arguments = ["tests.workers.made_up_worker", mode, *([str(MODEL)] if for_api else [])]
        faults = {"FAULT_CLOCK": str(clock)} if clock else {}
        if idle_seconds is not None:
            faults["FAULT_IDLE_SECONDS"] = str(idle_seconds)
        launched = self._launch_with(self._next_name("worker"), arguments, points, settings, **faults)
        if wait:
            launched.wait_until_ready()
        return launched

    def launch_deliverer(self, *points: Point, wait: bool = True, **settings: object) -> Launched:
        """Start a process that delivers webhooks to loopback addresses. wait: return only once it is ready."""
        own = {"webhook_allowed_networks": LOOPBACK, "delivery_poll_seconds": 0.1} | settings
        launched = self._launch_with(self._next_name("deliverer"), ["workers.delivery"], points, own)
        if wait:
            launched.wait_until_ready()
        return launched

    def launch_api(self, *points: Point, wait: bool = True, **settings: object) -> Launched:
        """Start the API. wait: return only once it is ready."""
        launched = self._launch_with("api", ["api"], points, settings)
        if wait:
            self.wait_for_api()
        return launched

    def _launch(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Running:
        """Start a process, which is forked unless its imports read the clock that it is given."""
        start = start_python if "FAULT_CLOCK" in environment else super()._launch
        return start(command, log, environment)

    def _next_name(self, role: str) -> str:
        self._started += 1
        return f"{role}-{self._started}"

    def _launch_with(
        self, name: str, arguments: list[str], points: Sequence[Point], settings: dict[str, object], **faults: str
    ) -> Launched:
        """Start a module with fail points and other faults."""
        environment = {f"SCORELINE_{setting.upper()}": str(value) for setting, value in settings.items()}
        environment |= {"FAULT_POINTS": to_text(points)} | faults
        return Launched(self, name, self._start("tests.faults.injection.launcher", name, arguments, **environment))

    def wait_for_api(self) -> None:
        """Return once the API is ready."""
        wait_until(self._ready, "the API to be ready", SECONDS)

    def post(self, body: dict[str, object], key: str | None = None) -> httpx2.Response | None:
        """Submit a job, perhaps with an idempotency key. Return None if no answer came."""
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            return self.client.post("/v1/jobs", json=body, headers=headers)
        except httpx2.TransportError:
            return None


def start_python(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start Python itself."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )


class Launched:
    """A started process of a deployment."""

    def __init__(self, deployment: Deployment, name: str, process: Running) -> None:
        self._deployment = deployment
        self.name = name
        self.process = process

    @property
    def log(self) -> str:
        """The log of the process so far."""
        return self._deployment.log(self.name)

    def logged(self, event: str) -> bool:
        """Return whether the process has logged this event."""
        return bool(self._deployment.events(self.name, event))

    def wait_until_ready(self) -> None:
        """Return once a worker or deliverer has logged that it is ready."""

        def ready() -> bool:
            assert self.process.poll() is None, self.log
            return self.logged("ready")

        wait_until(ready, f"{self.name} to be ready", SECONDS)

    def wait_until_killed(self) -> None:
        """Return once the process has killed itself at a fail point."""
        status = self.process.wait(SECONDS)
        assert status == -signal.SIGKILL, f"{self.name} ended with {status}:\n{self.log[-4000:]}"

    def wait_until_frozen(self) -> None:
        """Return once the process is frozen, at a fail point or by :meth:`freeze`."""

        def frozen() -> bool:
            assert self.process.poll() is None, self.log
            # The state comes after the name, which is in brackets and may contain anything. T: stopped by a signal.
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        wait_until(frozen, f"{self.name} to be frozen", SECONDS)

    def freeze(self) -> None:
        """Freeze the process now."""
        self.process.send_signal(signal.SIGSTOP)
        self.wait_until_frozen()

    def thaw(self) -> None:
        """Let the process go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process now."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Stop the process in good order. Return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


def frozen_when_ready() -> Point:
    """Return a point at which a worker has registered, and from which it does nothing until it is thawed.

    It is not in the middle of a transaction there.
    """
    return Point(START_SWEEPING, "before", signal="SIGSTOP")


def names_of(points: Sequence[Point]) -> list[str]:
    """Return the ids of tests that run once for each of these points."""
    return [f"{point.when} {point.place.rpartition('.')[2]} {point.nth}" for point in points]
