"""Little of the memory that requests have used is kept."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

MEBIBYTE = 2**20

PROGRAM = """
from pathlib import Path
from threading import Thread

from api.server.heap import limit_heaps


def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


kept = []


def hold_bodies():
    for _ in range(5):
        bodies = []
        for _ in range(5):
            bodies.append(b"x" * 2**23)
            kept.append(bytearray(3_000))


assert limit_heaps()
before = resident()
for _ in range(3):
    thread = Thread(target=hold_bodies)
    thread.start()
    thread.join()
hold_bodies()
print(resident() - before)
"""
"""Objects that stay are made between bodies of 8 MiB, in the main thread and in others."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_bodies_that_are_freed_leave_no_memory_behind() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert int(ran.stdout) < 8 * MEBIBYTE


FRAGMENTS = """
import asyncio

from api.server import heap

heap.LOOK_SECONDS = 0.01


async def main():
    heap.limit_heaps()
    giving = asyncio.create_task(heap.keep_giving_back())
    await asyncio.sleep(0)
    before = heap.resident_bytes()
    blocks = [bytearray(3_000) for _ in range(100_000)]
    assert heap.resident_bytes() - before > 250 * 2**20
    kept = blocks[::50]
    del blocks
    while heap.resident_bytes() - before > 100 * 2**20:
        await asyncio.sleep(0.01)
    assert not giving.done()


asyncio.run(asyncio.wait_for(main(), 20))
"""
"""Of many small blocks, some are kept. Nothing between them would go back by itself."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_free_memory_between_small_blocks_goes_back() -> None:
    subprocess.run([sys.executable, "-c", FRAGMENTS], check=True)


COUNT = """
import ctypes
import re
from threading import Barrier, Thread

from api.server.heap import limit_heaps

assert limit_heaps()
together = Barrier(40)


def work():
    blocks = [bytearray(3_000) for _ in range(100)]
    together.wait(20)


threads = [Thread(target=work) for _ in range(40)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
"""Forty threads that have blocks at the same time. glibc describes its heaps in XML."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_there_are_no_more_heaps_than_processors() -> None:
    ran = subprocess.run([sys.executable, "-c", COUNT], check=True, capture_output=True, text=True)
    assert 2 <= ran.stdout.count("<heap nr=") <= max(2, len(os.sched_getaffinity(0)))
