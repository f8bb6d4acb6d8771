"""Give memory that requests have used back to the system: large blocks go back at once, and there are few heaps.

What is free between the small blocks of the heaps goes back when the process has grown.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

LARGE_BYTES = 2**18
"""From this size on, a block is memory of its own, which costs about as much as writing to it once."""

FEWEST_HEAPS = 2

GROWN_BYTES = 2**26
"""By so much a process grows before free memory in its heaps goes back. To give back 170 MiB takes 13 ms."""

LOOK_SECONDS = 10.0

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Numbers of glibc's <malloc.h>."""


def limit_heaps() -> bool:
    """Have glibc keep few heaps and give large blocks back, from now on and for all threads.

    Returns False with another C library, which is left alone.

    Without this, glibc raises the size from which on a block is memory of its own, up to 32 MiB, whenever it frees a
    larger block. Then the bodies of clients lie between small blocks in heaps, and what they took stays there. It would
    also make eight heaps for each processor before threads share any, and what one of them has free is of no use to the
    others. No more threads compute at a time than there are processors.
    """
    process = _glibc()
    if process is None:
        return False
    heaps = max(FEWEST_HEAPS, len(os.sched_getaffinity(0)))
    return bool(process.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)) and bool(process.mallopt(_M_ARENA_MAX, heaps))


async def keep_giving_back() -> None:
    """Give the free memory of all heaps back whenever this process has grown, until cancelled."""
    process = _glibc()
    if process is None:
        await asyncio.Event().wait()
        return
    least = resident_bytes()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = resident_bytes()
        least = min(least, now)
        if now - least > GROWN_BYTES:
            await asyncio.to_thread(process.malloc_trim, 0)
            least = resident_bytes()


def resident_bytes() -> int:
    """Return how much memory this process has, what it shares with others included. For Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _glibc() -> ctypes.CDLL | None:
    """Return the C library of this process; None if it is another one."""
    process = ctypes.CDLL(None)
    return process if hasattr(process, "gnu_get_libc_version") else None
