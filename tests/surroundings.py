"""Where a test run keeps its temporary files and its compiled programs, for all of its processes."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 << 30
"""Room that a test run wants there: three PostgreSQL clusters and the files of tests take less than half of it."""


def _is_usable(folder: Path) -> bool:
    """Whether the folder has room, and programs in it may be run."""
    if not os.access(folder, os.W_OK | os.X_OK) or shutil.disk_usage(folder).free < MEMORY_BYTES:
        return False
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC


def keep_files_in_memory() -> None:
    """Have temporary files in memory, unless TMPDIR names a folder.

    On a disk, PostgreSQL takes up to ten times as long to create a database.
    """
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and _is_usable(MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def share_compiled_programs() -> None:
    """Have all processes of this run share what they compile, in a folder that is removed at its end.

    Most programs of the tests are compiled in many processes. Loading one takes an eighth of the time of compiling it.
    A variable of JAX that is set already stays as it is.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # as in the processes that xdist starts
        return
    folder = tempfile.mkdtemp(prefix="compiled-programs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    variables = {
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # XLA logs an error for each program that it loads on a CPU: it compares the machine with preferences of the
        # compiler, which no machine has.
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    os.environ.update(variables | {name: os.environ[name] for name in variables if name in os.environ})
