"""The page of all files of the service: what each of them says of itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from docs.site.reference.docstrings import as_markdown
from docs.site.reference.tables import code, table

ROOT = Path(__file__).parents[3]
ROOMS = (
    "settings",
    "telemetry",
    "public_api",
    "checkpoints",
    "scoring",
    "judgement",
    "jobs",
    "bell",
    "webhooks",
    "model",
    "workers",
    "operations",
    "api",
    "scoreline",
    "tools",
)

INTRODUCTION = """\
# Files

Each file does one job, which its first sentence names. [architecture.md](../architecture.md) says what the folders are
for, and where to make a change."""


def page() -> str:
    """Return the page: a table for each folder."""
    return "\n\n".join([INTRODUCTION, *(part for room in ROOMS for part in _folders(ROOT / room))]) + "\n"


def _folders(folder: Path) -> Iterator[str]:
    """Yield the section of a folder, and those of the folders in it."""
    modules = {path.name: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in _modules(folder)}
    rows = [(code(name), as_markdown(said or "").partition("\n\n")[0]) for name, said in modules.items()]
    if rows:
        yield f"## {folder.relative_to(ROOT).as_posix()}/\n\n{table(('file', 'what it holds'), rows)}"
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))):
        yield from _folders(inner)


def _modules(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
