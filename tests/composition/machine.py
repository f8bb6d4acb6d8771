"""A stand-in for the machine that a composition runs on: services are processes, and the two servers are private."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.composition.compose_file import Service
from tests.composition.image import build_context_paths, read_dockerfile
from tests.services import PostgresServer, RedisServer, find_binary, free_port, wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 180.0
CHECK_SECONDS = 30.0
SERVERS = ("postgres", "redis")
"""The services that do not run the image of the project."""


class Place(Protocol):
    """Where the image of the project is. environment: the variables that it sets; entrypoint: what comes before a
    command.
    """

    environment: Mapping[str, str]
    entrypoint: Sequence[str]

    def popen_arguments(self, words: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], Path]:
        """Return what runs the words with these variables in the image, and the folder to start it from."""


class CopiedSource:
    """The files that enter the image, and no others, copied to a folder. The packages are those of the tests."""

    def __init__(self, folder: Path) -> None:
        self._app = folder / "app"
        for name in build_context_paths():
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self._app / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (self._app / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self._app / name)
        image = read_dockerfile().final
        self.entrypoint: Sequence[str] = image.last("ENTRYPOINT").words()
        self.environment: Mapping[str, str] = image.environment | {
            "PATH": str(Path(sys.executable).parent),
            "PYTHONPATH": str(self._app),
            "HF_HOME": str(folder),
            "HOME": str(folder),
            # The processes of a test run share compiled programs.
            **{name: value for name, value in os.environ.items() if name.startswith("JAX_")},
        }

    def popen_arguments(self, words: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], Path]:
        """See :class:`Place`."""
        return ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *words], self._app


# Each process has its own view of the machine, as a container with a read-only root has of its image.
_READ_ONLY = """
set -e
places=$(awk '$2 !~ "^/(proc|sys|dev)(/|$)" || $2 == "/dev/shm" { print $2 }' /proc/self/mounts)
for folder in "$TMPDIR" "$HF_HOME"; do mount --bind "$folder" "$folder"; done
for place in $places; do mount -o remount,bind,ro "$place"; done
exec "$@"
"""
_SEE_READ_ONLY = ["unshare", "--mount", "sh", "-c", _READ_ONLY, "sh"]


def may_mount() -> bool:
    """Whether this process may give another one a view of the machine that is read-only."""
    folders = dict.fromkeys(("TMPDIR", "HF_HOME"), tempfile.gettempdir())
    tried = subprocess.run(["env", *_SEE_READ_ONLY, "true"], env=os.environ | folders, capture_output=True, check=False)
    return tried.returncode == 0


class ReadOnlySource(CopiedSource):
    """The same, where nothing can be written but the folders that stand for /tmp and for the cache of models."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.writable = {"TMPDIR": folder / "temporary", "HF_HOME": folder / "cache"}
        for path in self.writable.values():
            path.mkdir()
        self.environment = {**self.environment, **{name: str(path) for name, path in self.writable.items()}}

    def popen_arguments(self, words: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], Path]:
        """See :class:`Place`."""
        (env, clean, *others), folder = super().popen_arguments(words, environment)
        path = f"PATH={environment['PATH']}{os.pathsep}{os.environ['PATH']}"  # which has the programs that mount
        named = [f"{name}={value}" for name, value in environment.items()]
        return [env, clean, *named, path, *_SEE_READ_ONLY, env, clean, *others], folder


class Machine:
    """Runs composed services as processes. Of what the files say, only places are replaced: the two servers' addresses,
    the API's, and the port that a server's own health check asks.
    """

    def __init__(self, folder: Path, place: Place, postgres: PostgresServer, redis_server: RedisServer) -> None:
        self.folder = folder
        self.port = free_port()
        self._place = place
        self._servers = {"postgres": postgres.port, "redis": redis_server.port}
        self._places = {
            "@postgres:5432/": f"@127.0.0.1:{postgres.port}/",
            "//redis:6379/": f"//127.0.0.1:{redis_server.port}/",
            "0.0.0.0": "127.0.0.1",
            "8000": str(self.port),
            "9400": str(free_port()),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def _environment(self, service: Service) -> dict[str, str]:
        """Return the variables of the image and the service, and none of this process."""
        composed = dict(service.environment)
        for place, here in self._places.items():
            composed = {name: value.replace(place, here) for name, value in composed.items()}
        return {**self._place.environment, **composed}

    def start(self, service: Service) -> None:
        """Start a service as a process. PostgreSQL and Redis run already."""
        if service.name in SERVERS:
            return
        words = [*self._place.entrypoint, *service.command]
        command, folder = self._place.popen_arguments(words, self._environment(service))
        with (self.folder / f"{service.name}.log").open("wb") as log:
            self.processes[service.name] = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def log(self, name: str) -> str:
        """Return what a service has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def healthy(self, service: Service) -> bool:
        """Run the health check of a service once."""
        process = self.processes.get(service.name)
        assert process is None or process.poll() is None, f"{service.name} has ended:\n{self.log(service.name)}"
        if service.name in SERVERS:
            program, *options = service.healthcheck
            port = ["-p", str(self._servers[service.name])]
            command, folder = [find_binary(program), *port, *options], ROOT
        else:
            command, folder = self._place.popen_arguments(service.healthcheck, self._environment(service))
        return subprocess.run(command, cwd=folder, timeout=CHECK_SECONDS, check=False).returncode == 0

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
