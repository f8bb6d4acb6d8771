"""Run the services of the composition: commands, environments, order and health checks, on private servers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.composition.compose_file import ENVIRONMENT_EXAMPLE, Service, read_composition, read_environment_file
from tests.composition.image import build_context_paths, read_dockerfile
from tests.services import PostgresServer, RedisServer, find_binary, free_port, wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0
CHECK_SECONDS = 30.0
KEY = "bootstrap-key-of-a-composition-" + "0" * 16
BODY = {
    "query": "Review: The room was spotless and the staff were lovely.\nSentiment:",
    "items": [""],
    "labels": [" positive", " negative"],
    "apply_softmax": True,
}


class Machine:
    """Runs composed services as processes. Of what the files say, only places are replaced: the two servers' addresses,
    the API's, the image's folders, and the port that a server's own health check asks.
    """

    def __init__(self, folder: Path, postgres: PostgresServer, redis_server: RedisServer) -> None:
        self.folder = folder
        self.port = free_port()
        self._app = self._copy_context()
        self._image = read_dockerfile().final
        self._servers = {"postgres": postgres.port, "redis": redis_server.port}
        self._places = {
            "@postgres:5432/": f"@127.0.0.1:{postgres.port}/",
            "//redis:6379/": f"//127.0.0.1:{redis_server.port}/",
            "0.0.0.0": "127.0.0.1",
            "8000": str(self.port),
            "9400": str(free_port()),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def _copy_context(self) -> Path:
        """Copy the files that enter the image, and no others, to where the image has them."""
        app = self.folder / "app"
        for name in build_context_paths():
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, app / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                app.mkdir(exist_ok=True)
                shutil.copy(ROOT / name, app / name)
        return app

    def environment(self, service: Service) -> dict[str, str]:
        """Return the variables of the image and the service, and none of this process."""
        programs = [
            str(Path(sys.executable).parent),
            *(str(Path(find_binary(p)).parent) for p in ("postgres", "redis-cli")),
        ]
        composed = dict(service.environment)
        for place, here in self._places.items():
            composed = {name: value.replace(place, here) for name, value in composed.items()}
        return self._image.environment | {
            "PATH": os.pathsep.join(programs),
            "PYTHONPATH": str(self._app),
            "HF_HOME": str(self.folder),
            "HOME": str(self.folder),
            **composed,
        }

    def start(self, service: Service) -> None:
        """Start a service as a process. PostgreSQL and Redis run already."""
        if service.name in self._servers:
            return
        with (self.folder / f"{service.name}.log").open("wb") as log:
            self.processes[service.name] = subprocess.Popen(
                [*self._image.last("ENTRYPOINT").words(), *service.command],
                cwd=self._app,
                env=self.environment(service),
                stdout=log,
                stderr=log,
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def healthy(self, service: Service) -> bool:
        """Run the health check of a service once."""
        process = self.processes.get(service.name)
        assert process is None or process.poll() is None, f"{service.name} has ended:\n{self.log(service.name)}"
        environment, command = self.environment(service), list(service.healthcheck)
        match service.name:
            case "postgres":
                environment["PGPORT"] = str(self._servers["postgres"])
            case "redis":
                command[1:1] = ["-p", str(self._servers["redis"])]
        return (
            subprocess.run(command, cwd=self._app, env=environment, timeout=CHECK_SECONDS, check=False).returncode == 0
        )

    def wait_for(self, service: Service, condition: str) -> None:
        """Wait until a condition of ``depends_on`` holds."""
        match condition:
            case "service_started":
                pass
            case "service_healthy":
                wait_until(lambda: self.healthy(service), f"{service.name} to be healthy", START_SECONDS)
            case "service_completed_successfully":
                assert self.processes[service.name].wait(START_SECONDS) == 0, self.log(service.name)
            case other:
                raise AssertionError(f"no condition: {other}")

    def close(self) -> None:
        """Stop all that still run."""
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def machine(tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer) -> Iterator[Machine]:
    machine = Machine(tmp_path, postgres, redis_server)
    yield machine
    machine.close()


@pytest.mark.slow
def test_the_composed_services_start_in_order_become_healthy_score_and_stop(
    machine: Machine, postgres: PostgresServer
) -> None:
    # As a user would set it in .env: the programs are compiled when they are first met, for less to wait for here.
    composition = read_composition(
        read_environment_file(ENVIRONMENT_EXAMPLE)
        | {"SCORELINE_MULTI_ITEM_ENABLE_STARTUP_WARMUP": "false", "SCORELINE_BOOTSTRAP_KEY": KEY}
    )
    services = composition.services
    postgres.create_database(name=services["postgres"].environment["POSTGRES_DB"])
    for service in composition.start_order("cpu"):
        for other, condition in service.waits_for.items():
            machine.wait_for(services[other], condition)
        machine.start(service)
    running = [service for service in composition.start_order("cpu") if service.healthcheck]
    assert [service.name for service in running] == ["postgres", "redis", "api", "deliver", "worker"]
    for service in running:
        machine.wait_for(service, "service_healthy")

    url, key = f"http://127.0.0.1:{machine.port}", {"Authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        assert client.post("/v1/jobs", json=BODY).status_code == 401
        client.headers.update(key)
        accepted = client.post("/v1/jobs", json=BODY)
        assert accepted.status_code == 202, accepted.text
        assert accepted.json()["model"] == "demonstration"
        job = client.get(f"/v1/jobs/{accepted.json()['id']}", headers={"Prefer": "wait=60"}).json()
    assert job["status"] == "succeeded", job
    ((positive, negative),) = job["result"]["scores"]
    assert positive > 0.9 > 0.1 > negative

    for name in ("api", "deliver", "worker"):
        machine.processes[name].send_signal(signal.SIGTERM)
    for name in ("api", "deliver", "worker"):
        assert machine.processes.pop(name).wait(20) == 0, machine.log(name)
        assert not machine.healthy(services[name]), f"{name} is gone, and its health check does not say so"
