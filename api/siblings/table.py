"""Numbers that the processes of one API share: a file of integers that all of them have in memory.

Each process has a row, which only it writes while it lives. All processes read all rows. So nothing takes a lock, and
what a process that died had in use is forgotten by clearing its row.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
import zlib
from collections import Counter
from pathlib import Path

BUCKETS = 16_384
"""Numbers for tenants in a row: a tenant has that of its name's checksum. Two tenants rarely have the same one."""

USES = 4
"""The kinds of use that a row has numbers of, in all and for each tenant."""

COUNTED_JOBS = 2**20
"""The places for checksums of jobs whose end was counted. A job takes that of the one that had its place before."""

_PROCESS_ID, _AWAITED_JOBS, _HEARTBEAT, _USES = 0, 1, 2, 3
_ROW = _USES + USES * (1 + BUCKETS)
_INTEGER_BYTES = 8


class SharedTable:
    """The numbers of all processes. The file is sparse: a row takes memory for the tenants that were there."""

    def __init__(self, path: Path, rows: int) -> None:
        """Open the table, and make it if it is missing."""
        size = _INTEGER_BYTES * (COUNTED_JOBS + rows * _ROW)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, size)
            self._memory = mmap.mmap(file, size)
        finally:
            os.close(file)
        self._numbers = memoryview(self._memory).cast("q")
        self._counted = self._numbers[:COUNTED_JOBS]
        self._cells = self._numbers[COUNTED_JOBS:]
        self.rows = rows

    def clear(self, row: int) -> None:
        """Forget what a process had in use, once it has ended."""
        for cell in range(row * _ROW, (row + 1) * _ROW):
            if self._cells[cell]:
                self._cells[cell] = 0

    def process_ids(self) -> dict[int, int]:
        """Return the ids of the processes that live, by row."""
        ids = self._cells[_PROCESS_ID::_ROW]
        return {row: ids[row] for row in range(self.rows) if ids[row]}

    def set_process_id(self, row: int, process_id: int) -> None:
        """Say which process a row is of."""
        self._cells[row * _ROW + _PROCESS_ID] = process_id

    def awaited_jobs(self) -> int:
        """Return the number of jobs that requests wait for, over all processes."""
        return sum(self._cells[_AWAITED_JOBS::_ROW])

    def set_awaited_jobs(self, row: int, jobs: int) -> None:
        """Set the number of jobs that the requests of a process wait for."""
        self._cells[row * _ROW + _AWAITED_JOBS] = jobs

    def heartbeat(self, row: int) -> int:
        """Return when the event loop of a process last took a turn, in nanoseconds of ``time.monotonic_ns``."""
        return self._cells[row * _ROW + _HEARTBEAT]

    def set_heartbeat(self, row: int) -> None:
        """Say that the event loop of a process takes its turns."""
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


class SharedUse:
    """How much the requests of all processes have of something, in all and by tenant."""

    def __init__(self, table: SharedTable, row: int, kind: int) -> None:
        """kind: a number below :data:`USES`."""
        self._cells = table._cells
        self._first = _USES + kind * (1 + BUCKETS)
        self._start = row * _ROW
        self._own: Counter[str] = Counter()  # of this process; only tenants that use something

    def total(self) -> int:
        """Return the use of all tenants, and of requests whose tenant is not known yet."""
        return sum(self._cells[self._first :: _ROW])

    def of(self, tenant: str) -> int:
        """Return the use of a tenant. In other processes, that of a tenant with the same checksum counts with it."""
        column = self._column(tenant)
        others = sum(self._cells[column::_ROW]) - self._cells[self._start + column]
        return others + self._own[tenant]

    def add(self, tenant: str | None, amount: int) -> None:
        """Count this much more; a negative amount is given back. tenant: None counts in all only."""
        self._cells[self._start + self._first] += amount
        if tenant is not None:
            self._cells[self._start + self._column(tenant)] += amount
            self._own[tenant] += amount
            if self._own[tenant] == 0:
                del self._own[tenant]

    def _column(self, tenant: str) -> int:
        return self._first + 1 + zlib.crc32(tenant.encode()) % BUCKETS
