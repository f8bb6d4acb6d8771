"""The folder of LoRA adapters that requests may ask for by name, each on top of the served model.

API and workers look into the folder again and again, so an adapter may come and go while they run. Only names and the
sizes and times of files are looked at here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from checkpoints.source import Contents

FILES = Contents.ADAPTER.value
SEPARATOR = ":"
"""Between the name of the model and that of an adapter, as in ``Qwen/Qwen3-0.6B:refunds``."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)

Version = tuple[tuple[int, int], ...]
"""When each file of an adapter was changed, in nanoseconds, and its bytes. A changed adapter has another version."""


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A folder with a folder for each adapter, which has its name and the files that PEFT writes."""

    path: Path

    def names(self) -> list[str]:
        """Return the names of all adapters that are there now, in alphabetical order; none if the folder is gone."""
        try:
            return sorted(entry.name for entry in self.path.iterdir() if self.version(entry.name) is not None)
        except OSError:
            return []

    def version(self, name: str) -> Version | None:
        """Return the version of an adapter; None if there is none of this name."""
        if _NAME.fullmatch(name) is None:
            return None
        try:
            found = [(self.path / name / file).stat() for file in FILES]
        except OSError:
            return None
        return tuple((stat.st_mtime_ns, stat.st_size) for stat in found)


def name_of(model: str, adapter: str | None) -> str:
    """Return what requests and answers call a model with an adapter, or without one."""
    return model if adapter is None else f"{model}{SEPARATOR}{adapter}"
