"""What large blocks took goes back to the system when they are freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

MEBIBYTE = 2**20

PROGRAM = """
from pathlib import Path
from threading import Thread

from api.server.heap import give_large_blocks_back


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


assert give_large_blocks_back()
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
