"""Where the server lives, if it is there at all: the published package holds the client and the command alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, or the folder of the image, that this package is part of."""

DEMONSTRATION_MODEL = ROOT / "demonstration" / "model"
DEMONSTRATION_JOBS = ROOT / "examples" / "demo.json"

MISSING = (
    "the server is not installed here, only the client: run this from a checkout of Scoreline "
    "(pip install -e '.[server]') or from its image"
)


class CommandError(Exception):
    """Why a command can't do what it was asked to. One line, for the terminal."""


class ServerMissingError(CommandError):
    """The server's rooms are not installed beside this package."""


def require_rooms() -> None:
    """Raise ServerMissingError unless the server can be started from here."""
    if not (ROOT / "workers" / "engine_loop").is_dir():
        raise ServerMissingError(MISSING)


def python_command(*arguments: str) -> list[str]:
    """A Python that finds the rooms, and nothing of the same name in the current folder."""
    return [sys.executable, "-P", *arguments]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with changes, for :func:`python_command`."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path} | changes


def become(module: str, changes: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
    """Turn this process into a role of the server. Returns never."""
    require_rooms()
    sys.stdout.flush()
    os.execve(sys.executable, python_command("-m", module, *arguments), environment(**changes))
