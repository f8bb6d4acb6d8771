"""What a process and its children use, as Linux tells it."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """What a process and all of its descendants use at one moment."""

    memory: int = 0  # resident bytes; of memory that processes share, each counts its part, so it counts once in all
    descriptors: int = 0  # open files and connections
    threads: int = 0


def usage_of(pid: int) -> Usage:
    """Return the usage of a process with its descendants. One that ends meanwhile counts as nothing."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # The parent is the second field behind the name, which is in brackets and may contain anything.
                children[int((folder / "stat").read_text().rpartition(")")[2].split()[1])].append(int(folder.name))
    memory = descriptors = threads = 0
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        waiting += children[one]
        with contextlib.suppress(OSError):
            threads += int(_fields(one, "status")["Threads"])
            descriptors += len(list((PROC / str(one) / "fd").iterdir()))
            # The resident bytes of the status would count the memory of a process once more for each that it forks.
            memory += int(_fields(one, "smaps_rollup").get("Pss", "0 kB").split()[0]) * 1024
    return Usage(memory, descriptors, threads)


def _fields(pid: int, file: str) -> dict[str, str]:
    lines = (PROC / str(pid) / file).read_text().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
