"""Find and run the server's code. The published package does not have it, only the client and the command."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scoreline.exit_codes import CommandError, ExitCode

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, or the folder of the image, that contains this package."""

DEMONSTRATION_MODEL = ROOT / "demonstration" / "model"
DEMONSTRATION_JOBS = ROOT / "examples" / "demo.json"

DATABASE_VARIABLE = "SCORELINE_DATABASE_URL"
DATABASE_FILE = "scoreline.db"
"""The database of an embedded service, in its data directory."""

SERVER_MISSING = (
    "the server is not installed here, only the client and the command: install it first. In a checkout of Scoreline, "
    "pip install -e '.[server]' does so; its image has it, too"
)
EVERY_PROCESS = ("pydantic", "structlog")
"""Packages that every process of the server needs."""
ALL_PROCESSES = (*EVERY_PROCESS, "sqlalchemy", "alembic", "fastapi", "uvicorn", "celery", "transformers", "jax", "flax")
"""The larger ones of those that some process needs."""


def require_server(packages: Iterable[str] = ALL_PROCESSES) -> None:
    """Raise CommandError unless the server's code and some packages that it needs are here."""
    if not (ROOT / "workers" / "engine_loop").is_dir():
        raise CommandError(SERVER_MISSING)
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise CommandError(
            f"packages of the server are not installed here: {', '.join(missing)}. Install them first: "
            f"pip install -e '{ROOT}[server]'"
        )


def python_command(*arguments: str) -> list[str]:
    """Return a command that runs Python without importing from the current folder. See :func:`environment`."""
    return [sys.executable, "-P", *arguments]


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with changes, in which Python finds the server's code."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path} | changes


def embedded_database(data: Path) -> str:
    """Return the URL of the database that ``scoreline up --data DATA`` uses."""
    return f"sqlite:///{data / DATABASE_FILE}"


def exec_on_database(module: str, data: Path | None, arguments: Sequence[str] = ()) -> None:
    """Run a module on a database. Never returns.

    data: the data directory of an embedded service; None: the database that the environment names.
    """
    if data is None:
        exec_server_module(module, {}, arguments)
    elif not (data / DATABASE_FILE).is_file():
        raise CommandError(
            f"--data is {str(data)!r}: there is no {DATABASE_FILE} in it; name the folder of a `scoreline up`",
            ExitCode.USAGE,
        )
    else:
        exec_server_module(module, {DATABASE_VARIABLE: embedded_database(data)}, arguments)


def exec_server_module(module: str, changes: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
    """Replace this process by one that runs a module of the server. Never returns."""
    require_server(EVERY_PROCESS)
    sys.stdout.flush()
    os.execve(sys.executable, python_command("-m", module, *arguments), environment(**changes))
