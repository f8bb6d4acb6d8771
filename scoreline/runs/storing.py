"""Have the system store files for good, so that they outlive a power failure; and remove what is not finished."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from scoreline.runs.formats import lost


def store_for_good(path: Path) -> None:
    """Return once a file is on the disk; or, for a folder, the names of the files in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_name(complete: Path, path: Path) -> None:
    """Have a complete file replace what has its name, unless that is done already. Raises CommandError, OSError."""
    if complete.exists():
        complete.replace(path)
    elif not path.exists():
        raise lost(complete)
    store_for_good(path.absolute().parent)


UNFINISHED_SEGMENT = "unfinished"
_SEGMENT = re.compile(r"(\d{8,})\.parquet")


def segment(folder: Path, number: int) -> Path:
    """Return where the segment of a Parquet file for a window is."""
    return folder / f"{number:08}.parquet"


def remove_unfinished(path: Path) -> None:
    """Remove a file, or a folder of segments. What else is in the folder stays, and then so does the folder."""
    if path.is_dir():
        remove_segments(path, 0)
        with suppress(OSError):
            path.rmdir()
    else:
        path.unlink(missing_ok=True)


def remove_segments(folder: Path, first: int) -> None:
    """Remove the segments in a folder from this number on."""
    for file in folder.iterdir():
        found = _SEGMENT.fullmatch(file.name)
        if file.name == UNFINISHED_SEGMENT or (found is not None and int(found[1]) >= first):
            file.unlink()
