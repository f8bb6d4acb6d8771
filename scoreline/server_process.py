"""Find and run the server's code. The published package does not have it, only the client and the command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, or the folder of the image, that contains this package."""

DEMONSTRATION_MODEL = ROOT / "demonstration" / "model"
DEMONSTRATION_JOBS = ROOT / "examples" / "demo.json"

SERVER_MISSING = (
    "the server is not installed here, only the client: run this from a checkout of Scoreline "
    "(pip install -e '.[server]') or from its image"
)


class CommandError(Exception):
    """Why a command failed, in one line for the terminal."""


class ServerMissingError(CommandError):
    """The server's code is not installed beside this package."""


def require_server() -> None:
    """Raise ServerMissingError unless the server's code is here."""
    if not (ROOT / "workers" / "engine_loop").is_dir():
        raise ServerMissingError(SERVER_MISSING)


def python_command(*arguments: str) -> list[str]:
    """Return a command that runs Python without importing from the current folder. See :func:`environment`."""
    return [sys.executable, "-P", *arguments]


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with changes, in which Python finds the server's code."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path} | changes


def exec_server_module(module: str, changes: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
    """Replace this process by one that runs a module of the server. Never returns."""
    require_server()
    sys.stdout.flush()
    os.execve(sys.executable, python_command("-m", module, *arguments), environment(**changes))
