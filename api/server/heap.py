"""Give memory that requests have used back to the system: large blocks go back at once, and there are few heaps."""

from __future__ import annotations

import ctypes
import os

LARGE_BYTES = 2**18
"""From this size on, a block is memory of its own, which costs about as much as writing to it once."""

FEWEST_HEAPS = 2

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Numbers of glibc's <malloc.h>."""


def keep_little_memory() -> bool:
    """Have glibc do so, from now on and for all threads. Returns False with another C library, which is left alone.

    Without this, glibc raises the size from which on a block is memory of its own, up to 32 MiB, whenever it frees a
    larger block. Then the bodies of clients lie between small blocks in heaps, and what they took stays there. It would
    also make eight heaps for each processor before threads share any, and what one of them has free is of no use to the
    others. No more threads compute at a time than there are processors.
    """
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return False
    heaps = max(FEWEST_HEAPS, len(os.sched_getaffinity(0)))
    return bool(process.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)) and bool(process.mallopt(_M_ARENA_MAX, heaps))
