"""An implementation of Compose reads ``docker-compose.yml`` as the other tests of this folder do.

The program is Docker Compose of version 2 or later: the plugin of docker, `docker-compose`, or what COMPOSE names.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.composition.compose_file import (
    COMPOSE_FILE,
    ENVIRONMENT_EXAMPLE,
    Service,
    read_composition,
    read_environment_file,
)

KEY = "bootstrap-key-of-a-composition-" + "0" * 16


def _compose() -> list[str]:
    """Return the command of an implementation; skip where none is installed."""
    named = os.environ.get("COMPOSE")
    for command in [shlex.split(named)] if named else [["docker", "compose"], ["docker-compose"]]:
        if shutil.which(command[0]) is None:
            continue
        version = subprocess.run([*command, "version", "--short"], capture_output=True, text=True, check=False)
        if version.returncode == 0 and int(version.stdout.strip().lstrip("v").split(".")[0]) >= 2:
            return command
    pytest.skip("Docker Compose 2 is not installed; COMPOSE may name it")


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    """A completed .env, in which some settings are set and most are not."""
    example = read_environment_file(ENVIRONMENT_EXAMPLE)
    return example | {"SCORELINE_BOOTSTRAP_KEY": KEY, "SCORELINE_MAX_LABELS": "7", "POSTGRES_PASSWORD": "pa$$word"}


@pytest.fixture(scope="module")
def parsed(variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program makes of the file."""
    folder = tmp_path_factory.mktemp("compose")
    (folder / ".env").write_text("".join(f"{name}='{value}'\n" for name, value in variables.items()))
    profiles = [word for name in ("cpu", "gpu", "tpu") for word in ("--profile", name)]
    done = subprocess.run(
        [*_compose(), "--env-file", folder / ".env", "--file", COMPOSE_FILE, *profiles, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "it warns of nothing"
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_compose_implementation_reads_the_same_services(parsed: dict[str, Any], variables: dict[str, str]) -> None:
    read = read_composition(variables)
    assert parsed["services"].keys() == read.services.keys()
    assert parsed["volumes"].keys() == read.volumes
    for name, service in read.services.items():
        assert _ours(service) == _theirs(parsed["services"][name]), name


def _ours(service: Service) -> dict[str, object]:
    raw = service.raw
    return {
        "image": raw["image"],
        "accelerator": service.accelerator,
        "command": list(service.command),
        "environment": dict(service.environment),
        "healthcheck": list(service.healthcheck),
        "waits for": dict(service.waits_for),
        "profiles": set(service.profiles),
        "ports": service.ports,
        "grace": _seconds(raw.get("stop_grace_period")),
        "volumes": sorted((volume["type"], volume["target"]) for volume in raw.get("volumes", [])),
        "rights": (raw.get("cap_drop"), raw.get("security_opt"), raw.get("privileged", False), raw.get("init", False)),
        "restart": raw["restart"],
    }


def _theirs(service: dict[str, Any]) -> dict[str, object]:
    build = service.get("build")
    given = {name: value for name, value in (service.get("environment") or {}).items() if value is not None}
    return {
        "image": service["image"],
        "accelerator": None if build is None else build["args"]["ACCELERATOR"],
        "command": service["command"] or [],
        "environment": {name: value.replace("$$", "$") for name, value in given.items()},
        "healthcheck": [word.replace("$$", "$") for word in service.get("healthcheck", {"test": ["CMD"]})["test"][1:]],
        "waits for": {other: how["condition"] for other, how in service.get("depends_on", {}).items()},
        "profiles": set(service.get("profiles", ())),
        "ports": [(one["host_ip"], one["published"], str(one["target"])) for one in service.get("ports", [])],
        "grace": _seconds(service.get("stop_grace_period")),
        "volumes": sorted((volume["type"], volume["target"]) for volume in service.get("volumes", [])),
        "rights": (
            service.get("cap_drop"),
            service.get("security_opt"),
            service.get("privileged", False),
            service.get("init", False),
        ),
        "restart": service["restart"],
    }


def _seconds(duration: str | None) -> float | None:
    """Return a duration such as ``1m0s`` in seconds."""
    if duration is None:
        return None
    minutes, _, seconds = duration.rpartition("m")
    return 60.0 * float(minutes or 0) + float(seconds.removesuffix("s"))


def test_a_compose_implementation_builds_from_the_folder_of_the_file(parsed: dict[str, Any]) -> None:
    contexts = {service["build"]["context"] for service in parsed["services"].values() if "build" in service}
    assert {Path(context) for context in contexts} == {COMPOSE_FILE.parent}
