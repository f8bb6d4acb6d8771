"""Read ``docker-compose.yml`` as Docker Compose does, without Docker. Syntax that is not known here is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
ENVIRONMENT_EXAMPLE = ROOT / ".env.example"

_REFERENCE = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:(?P<form>:-|:\?)(?P<word>[^${}]*))?\})"
)


class CompositionError(Exception):
    """The file has something that Docker Compose would refuse, or that this reader does not know."""


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``${X}``, ``${X:-default}`` and ``${X:?message}``; ``$$`` is a dollar. Any other dollar is refused, and
    so is an unset variable without a default, for which Docker Compose takes an empty string with a warning.
    """
    if "$" in _REFERENCE.sub("", text):
        raise CompositionError(f"not understood: {text}")

    def value(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        given = variables.get(found["name"])
        if found["form"] is None:
            if given is None:
                raise CompositionError(f"{found['name']} is not set: {text}")
            return given
        if given:
            return given
        if found["form"] == ":?":
            raise CompositionError(f"{found['name']}: {found['word']}")
        return found["word"]

    return _REFERENCE.sub(value, text)


def referenced(node: Any) -> Iterator[str]:
    """Return the names of all variables that are interpolated below a node."""
    match node:
        case str():
            yield from (found["name"] for found in _REFERENCE.finditer(node) if found["name"])
        case Mapping():
            for value in node.values():
                yield from referenced(value)
        case Sequence():
            for value in node:
                yield from referenced(value)


def read_environment_file(path: Path) -> dict[str, str]:
    """Return the variables of an ``.env`` file of plain ``NAME=value`` lines."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@dataclass(frozen=True, slots=True)
class Service:
    """A service as composed. environment: what the container gets; waits_for: service to condition; healthcheck: the
    command's words, none where there is no check; passed_on: variables without a value of their own.
    """

    name: str
    raw: Mapping[str, Any]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    passed_on: frozenset[str]
    healthcheck: tuple[str, ...]
    waits_for: Mapping[str, str]
    profiles: frozenset[str]

    @property
    def accelerator(self) -> str | None:
        """The ACCELERATOR that its image is built with; None if the image is not built here."""
        build = self.raw.get("build")
        return None if build is None else build["args"]["ACCELERATOR"]

    @property
    def ports(self) -> list[tuple[str, str, str]]:
        """Published ports: address and port of the machine, port of the container."""
        published = []
        for port in self.raw.get("ports", []):
            address, outside, inside = port.split(":")
            published.append((address, outside, inside))
        return published


@dataclass(frozen=True, slots=True)
class Composition:
    """All services, by name, and the named volumes."""

    services: Mapping[str, Service]
    volumes: frozenset[str]

    def start_order(self, profile: str) -> list[Service]:
        """Return the services of a profile and those without one, each after those that it waits for."""
        chosen = {s.name: s for s in self.services.values() if not s.profiles or profile in s.profiles}
        order: list[Service] = []
        while len(order) < len(chosen):
            started = {service.name for service in order}
            ready = [s for s in chosen.values() if s.name not in started and s.waits_for.keys() <= started]
            if not ready:
                raise CompositionError(f"they wait for each other: {sorted(chosen.keys() - started)}")
            order.extend(ready)
        return order


def read_composition(variables: Mapping[str, str], path: Path = COMPOSE_FILE) -> Composition:
    """Parse the file and interpolate it with the given variables, as from ``.env`` and the shell."""
    document = _interpolated(yaml.safe_load(path.read_text(encoding="utf-8")), variables)
    services = {name: _service(name, raw, variables) for name, raw in document["services"].items()}
    return Composition(services, frozenset(document["volumes"]))


def _interpolated(node: Any, variables: Mapping[str, str]) -> Any:
    match node:
        case str():
            return interpolate(node, variables)
        case dict():
            return {key: _interpolated(value, variables) for key, value in node.items()}
        case list():
            return [_interpolated(value, variables) for value in node]
    return node


def _service(name: str, raw: Mapping[str, Any], variables: Mapping[str, str]) -> Service:
    declared: Mapping[str, str | None] = raw.get("environment", {})
    passed_on = frozenset(key for key, value in declared.items() if value is None)
    environment = {key: value for key, value in declared.items() if value is not None}
    environment |= {key: variables[key] for key in passed_on if key in variables}
    for what in (*environment.values(), *raw.get("command", [])):
        if not isinstance(what, str):
            raise CompositionError(f"{name}: {what!r} is no text, and YAML has its own idea of how to write it")
    return Service(
        name=name,
        raw=raw,
        command=tuple(raw.get("command", ())),
        environment=environment,
        passed_on=passed_on,
        healthcheck=_check_command(name, raw.get("healthcheck")),
        waits_for={other: how["condition"] for other, how in raw.get("depends_on", {}).items()},
        profiles=frozenset(raw.get("profiles", ())),
    )


def _check_command(name: str, healthcheck: Mapping[str, Any] | None) -> tuple[str, ...]:
    if healthcheck is None:
        return ()
    form, *command = healthcheck["test"]
    if form != "CMD" or not command:
        raise CompositionError(f"{name}: a health check is a command in exec form, not {healthcheck['test']}")
    return tuple(command)
