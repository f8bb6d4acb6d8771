"""Give the memory of large blocks, such as bodies, back to the system as soon as they are freed."""

from __future__ import annotations

import ctypes

LARGE_BYTES = 2**18
"""From this size on, a block is memory of its own, which costs about as much as writing to it once."""

_M_MMAP_THRESHOLD = -3
"""A number of glibc's <malloc.h>."""


def give_large_blocks_back() -> bool:
    """Have glibc do so, from now on and for all threads. Returns False with another C library, which is left alone.

    Without this, glibc raises the size from which on it does so, up to 32 MiB, whenever it frees a larger block. Then
    the bodies of clients lie between small blocks in heaps, one for each thread, and what they took stays there.
    """
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return False
    return bool(process.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES))
