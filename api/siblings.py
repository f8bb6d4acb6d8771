"""What the processes that serve a port together know of each other: a file of numbers that all have in memory.

Each process has a row, which only it writes while it lives. All processes read all rows. So nothing takes a lock, and
what a process that died had in use is forgotten by clearing its row.
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

COUNTED_JOBS = 2**20
"""The places for checksums of jobs whose end was counted. A job takes that of the one that had its place before."""

NUMBERS = 5
"""How many numbers a process shows of what its requests have in use."""

COUNTER_KINDS = ("counter", "histogram")
"""The kinds of metrics that a process counts itself: prometheus_client keeps a file for each."""

COUNTER_BYTES = 2**18

HEARTBEAT_SECONDS = 1.0

NOT_READY_SECONDS = 5.0
"""After such a silence of one process all say that they are not ready: connections that it gets are not answered."""

_PROCESS_ID, _HEARTBEAT, _IN_USE = 0, 1, 2
_ROW = _IN_USE + NUMBERS
_INTEGER_BYTES = 8


class SharedTable:
    """The numbers of all processes."""

    def __init__(self, folder: Path, rows: int) -> None:
        """Open the table of the processes whose folder this is, and make it if it is missing."""
        path = folder / "table"
        if not path.exists():
            path.write_bytes(bytes(_INTEGER_BYTES * (COUNTED_JOBS + rows * _ROW)))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        numbers = memoryview(self._memory).cast("q")
        self._counted = numbers[:COUNTED_JOBS]
        self._cells = numbers[COUNTED_JOBS:]
        self.rows = rows

    def clear(self, row: int) -> None:
        """Forget a process once it has ended."""
        for cell in range(row * _ROW, (row + 1) * _ROW):
            self._cells[cell] = 0

    def process_ids(self) -> dict[int, int]:
        """Return the ids of the processes that live, by row."""
        ids = self._cells[_PROCESS_ID::_ROW]
        return {row: ids[row] for row in range(self.rows) if ids[row]}

    def set_process_id(self, row: int, process_id: int) -> None:
        """Say which process a row is of."""
        self._cells[row * _ROW + _PROCESS_ID] = process_id

    def in_use(self) -> list[int]:
        """Return what the requests of all processes have in use, as far as the processes have shown it."""
        return [sum(self._cells[_IN_USE + number :: _ROW]) for number in range(NUMBERS)]

    def set_in_use(self, row: int, numbers: Sequence[int]) -> None:
        """Show what the requests of a process have in use: :data:`NUMBERS` numbers."""
        for cell, number in enumerate(numbers, row * _ROW + _IN_USE):
            self._cells[cell] = number

    def heartbeat(self, row: int) -> int:
        """Return when the event loop of a process last took a turn, in nanoseconds of ``time.monotonic_ns``.

        It is 0 until the process serves.
        """
        return self._cells[row * _ROW + _HEARTBEAT]

    def set_heartbeat(self, row: int) -> None:
        """Say that a process serves, and that its event loop takes its turns."""
        self._cells[row * _ROW + _HEARTBEAT] = time.monotonic_ns()

    def silent_rows(self, seconds: float) -> list[int]:
        """Return the processes whose event loops have taken no turn for so long."""
        since = time.monotonic_ns() - int(seconds * 1e9)
        return [row for row in range(self.rows) if 0 < self.heartbeat(row) < since]

    def count_job(self, job_id: str) -> bool:
        """Return whether a job's end is counted now for the first time, as far as the table remembers.

        Two processes that ask at the very same moment may both be told that it is.
        """
        digest = hashlib.blake2b(job_id.encode(), digest_size=_INTEGER_BYTES).digest()
        checksum = int.from_bytes(digest, "big", signed=True)
        place = checksum % COUNTED_JOBS
        if self._counted[place] == checksum:
            return False
        self._counted[place] = checksum
        return True


@dataclass(frozen=True, slots=True)
class Siblings:
    """This process among its siblings."""

    number: int  # of this process, from 0
    count: int  # of all of them
    folder: Path  # where the processes keep what they share
    table: SharedTable = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", SharedTable(self.folder, self.count))
        self.table.set_process_id(self.number, os.getpid())

    def set_in_use(self, numbers: Sequence[int]) -> None:
        """Show what the requests of this process have in use."""
        self.table.set_in_use(self.number, numbers)

    async def keep_heartbeat(self) -> None:
        """Show the parent and the siblings that the event loop takes its turns, until this is cancelled."""
        while True:
            self.table.set_heartbeat(self.number)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def silent(self) -> list[int]:
        """Return the processes that have been silent for so long that the port is not to get requests."""
        return self.table.silent_rows(NOT_READY_SECONDS)


def make_shared(folder: Path, count: int) -> SharedTable:
    """Make the files that so many processes share, before any of them is started. Raises OSError.

    They are written in full. In a sparse file, the first number for which the disk has no room ends a process.
    """
    counters_folder(folder).mkdir()
    for number in range(count):
        for kind in COUNTER_KINDS:
            (counters_folder(folder) / f"{kind}_{number}.db").write_bytes(bytes(COUNTER_BYTES))
    return SharedTable(folder, count)


def counters_folder(folder: Path) -> Path:
    """Return where the counters of all processes are kept. A process goes on with those of the one before it."""
    return folder / "counters"
