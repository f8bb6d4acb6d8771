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

    memory: int = 0  # resident bytes; memory that two processes share counts twice
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
            status = dict(line.split(":", 1) for line in (PROC / str(one) / "status").read_text().splitlines())
            memory += int(status.get("VmRSS", "0 kB").split()[0]) * 1024
            threads += int(status["Threads"])
            descriptors += len(list((PROC / str(one) / "fd").iterdir()))
    return Usage(memory, descriptors, threads)
