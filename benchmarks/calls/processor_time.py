"""The processor time of processes together with all that they have started."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.services import stat_of

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PARENT, FIRST_TIME = 1, 11
"""Places in :func:`tests.services.stat_of`: behind the first time, of the process in user mode, come its time in the
kernel, and both times of the children that have ended."""


def family(roots: Iterable[int]) -> set[int]:
    """Return processes and all their descendants."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*"):
        try:
            children[int(stat_of(int(path.name))[PARENT])].append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        process_id = waiting.pop()
        found.add(process_id)
        waiting += children[process_id]
    return found


def cpu_seconds(process_ids: Iterable[int]) -> float:
    """Return the processor time of processes so far, with that of their children that have ended."""
    ticks = 0
    for process_id in process_ids:
        try:
            ticks += sum(map(int, stat_of(process_id)[FIRST_TIME : FIRST_TIME + 4]))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended, so its time is its parent's now
    return ticks / TICKS_PER_SECOND
