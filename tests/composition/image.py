"""Read ``Dockerfile`` and ``.dockerignore`` without Docker."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: of ``COPY a b``, the name is COPY and the rest ``a b``."""

    name: str
    value: str

    def copies(self) -> tuple[list[str], str]:
        """Return sources and destination of a COPY from the build context."""
        *sources, destination = self.value.split()
        return sources, destination

    def words(self) -> list[str]:
        """Return the words of an exec form. Raises ValueError for the shell form."""
        words: list[str] = json.loads(self.value)
        return words


@dataclass(frozen=True, slots=True)
class Stage:
    """base: an image, or another stage; name: empty for the last one, which is the image."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]

    def all(self, name: str) -> list[Instruction]:
        """Return its instructions of one name, in order."""
        return [instruction for instruction in self.instructions if instruction.name == name]

    def last(self, name: str) -> Instruction:
        """Return its last instruction of a name, which is the one in force if each replaces the one before."""
        return self.all(name)[-1]

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables set by ENV."""
        return dict(pair.split("=", 1) for one in self.all("ENV") for pair in one.value.split())


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A multi-stage Dockerfile."""

    stages: tuple[Stage, ...]

    @property
    def final(self) -> Stage:
        """The stage that becomes the image."""
        return self.stages[-1]


def read_dockerfile(path: Path = ROOT / "Dockerfile") -> Dockerfile:
    """Parse a Dockerfile with its comments, continued lines and stages."""
    text = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    lines = [line.strip() for line in re.sub(r"\\\n", " ", text).splitlines()]
    stages: list[Stage] = []
    for name, _, value in (line.partition(" ") for line in lines if line):
        if name == "FROM":
            base, _, stage = value.partition(" AS ")
            stages.append(Stage(stage, base, ()))
        else:
            last = stages[-1]
            stages[-1] = Stage(last.name, last.base, (*last.instructions, Instruction(name, value.strip())))
    return Dockerfile(tuple(stages))


def build_context_paths(path: Path = ROOT / ".dockerignore") -> list[str]:
    """Return the paths that ``.dockerignore`` lets in; it starts by excluding everything."""
    rules = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*", "it begins by refusing everything"
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    assert [rule for rule in rules[1:] if not rule.startswith("!")] == ["**/__pycache__"]
    return allowed
