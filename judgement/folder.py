"""The folder of artefacts that a service serves, by the names of their files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from judgement.artefacts import Artefact, read
from judgement.sample import JudgementError

MOST_BYTES = 2**20
"""A larger file is no artefact."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ArtefactFolder:
    """A folder with JSON files. They may come, change and go at any time."""

    path: Path

    def names(self) -> list[str]:
        """Return the names of all files that are there now, in alphabetical order; none if the folder is gone."""
        try:
            return sorted(file.stem for file in self.path.glob("*.json") if _NAME.fullmatch(file.stem))
        except OSError:
            return []

    def find(self, name: str) -> Artefact | None:
        """Return an artefact, or None if no file has its name. Raises JudgementError for what is no artefact."""
        if _NAME.fullmatch(name) is None:
            return None
        file = self.path / f"{name}.json"
        try:
            stat = file.stat()
            if stat.st_size > MOST_BYTES:
                raise JudgementError(f"{file.name} is no artefact: it has {stat.st_size:,} bytes")
            return _read(file, stat.st_mtime_ns, stat.st_size)
        except OSError:
            return None


@lru_cache(maxsize=256)
def _read(file: Path, _changed: int, _size: int) -> Artefact:
    try:
        return read(file)
    except JudgementError as error:
        # Clients are told what is wrong, and not where the server keeps its files.
        raise JudgementError(str(error).replace(str(file), file.name)) from None
