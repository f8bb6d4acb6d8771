"""A deployment whose processes have faults built in, and whose workers make their scores up."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import httpx2

from tests.end_to_end.deployment import MODEL, Deployment
from tests.faults.injection.points import Point, to_text
from tests.services import wait_until

SECONDS = 60.0
"""In which everything here must have recovered: far more than it takes, so that a slow machine is not a failure."""


LOOPBACK = "127.0.0.0/8"


class FaultyDeployment(Deployment):
    """An API and workers, each a real process in which points may have been set.

    Its workers poll and sweep every tenth of a second, unless told otherwise.
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
        """Start a worker; wait: return once it is ready.

        mode: see :mod:`tests.workers.made_up_worker`; for_api: it serves what the API does, not the tests' own model.
        """
        self._started += 1
        name = f"worker-{self._started}"
        arguments = ["tests.workers.made_up_worker", mode, *([str(MODEL)] if for_api else [])]
        faults = {"FAULT_POINTS": to_text(points)}
        if clock:
            faults["FAULT_CLOCK"] = str(clock)
        if idle_seconds is not None:
            faults["FAULT_IDLE_SECONDS"] = str(idle_seconds)
        process = self._start("tests.faults.injection.launcher", name, arguments, **faults, **_environment(settings))
        launched = Launched(self, name, process)
        if wait:
            launched.wait_until_ready()
        return launched

    def launch_deliverer(self, *points: Point, wait: bool = True, **settings: object) -> Launched:
        """Start a process that delivers webhooks, to loopback; wait: return once it is ready."""
        self._started += 1
        name = f"deliverer-{self._started}"
        faults = {"FAULT_POINTS": to_text(points)}
        own = {"webhook_allowed_networks": LOOPBACK, "delivery_poll_seconds": 0.1} | settings
        process = self._start(
            "tests.faults.injection.launcher", name, ["workers.delivery"], **faults, **_environment(own)
        )
        launched = Launched(self, name, process)
        if wait:
            launched.wait_until_ready()
        return launched

    def launch_api(self, *points: Point, wait: bool = True, **settings: object) -> Launched:
        """Start the API; wait: return once it is ready."""
        faults = {"FAULT_POINTS": to_text(points)}
        process = self._start("tests.faults.injection.launcher", "api", ["api"], **faults, **_environment(settings))
        launched = Launched(self, "api", process)
        if wait:
            self.wait_for_api()
        return launched

    def wait_for_api(self) -> None:
        """Return once the API answers that it is ready."""
        wait_until(self._ready, "the API to be ready", SECONDS)

    def post(self, body: dict[str, object], key: str) -> httpx2.Response | None:
        """Submit a job under a key; None if no answer came."""
        try:
            return self.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})
        except httpx2.TransportError:
            return None


def _environment(settings: dict[str, object]) -> dict[str, str]:
    return {f"SCORELINE_{name.upper()}": str(value) for name, value in settings.items()}


class Launched:
    """A process of a deployment."""

    def __init__(self, deployment: Deployment, name: str, process: subprocess.Popen[bytes]) -> None:
        self._deployment = deployment
        self.name = name
        self.process = process

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._deployment.log(self.name)

    def logged(self, event: str) -> bool:
        """Whether it has logged this event."""
        return bool(self._deployment.events(self.name, event))

    def wait_until_ready(self) -> None:
        """Return once a worker says that it is."""

        def ready() -> bool:
            assert self.process.poll() is None, self.log
            return self.logged("ready")

        wait_until(ready, f"{self.name} to be ready", SECONDS)

    def wait_until_killed(self) -> None:
        """Return once it has come to the point where it is killed."""
        status = self.process.wait(SECONDS)
        assert status == -signal.SIGKILL, f"{self.name} ended with {status}:\n{self.log[-4000:]}"

    def wait_until_frozen(self) -> None:
        """Return once it has come to the point where it is frozen."""

        def frozen() -> bool:
            assert self.process.poll() is None, self.log
            # After the name, which is in brackets and may hold anything: T is stopped by a signal.
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        wait_until(frozen, f"{self.name} to be frozen", SECONDS)

    def freeze(self) -> None:
        """Freeze it now."""
        self.process.send_signal(signal.SIGSTOP)
        self.wait_until_frozen()

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it now."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Have it end in good order; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


def frozen_when_ready() -> Point:
    """Of a worker that is started ahead of its time: it is registered, and does nothing until it is thawed.

    In front of its sweeping, so that it is not in the middle of any transaction.
    """
    return Point("workers.engine_loop.serving.keep_sweeping", "before", signal="SIGSTOP")


def names_of(points: Sequence[Point]) -> list[str]:
    """For the ids of tests."""
    return [f"{point.when} {point.function.rpartition('.')[2]} {point.nth}" for point in points]
