"""What all processes of a test run share: files, compiled programs, how they log, and that they can be interrupted."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import structlog

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 << 30
"""Room that a test run wants there: three PostgreSQL clusters and the files of tests take less than half of it."""

COMPILED = Path(__file__).parents[1] / ".compiled-programs"
COMPILED_BYTES = 256 << 20
"""The size at which all compiled programs are removed before a run. One run writes less than a tenth of it."""


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


def _processor() -> str:
    """A name for this kind of processor: a program that was compiled for another one may use what this one lacks."""
    described = platform.machine()
    with suppress(FileNotFoundError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        described += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def share_compiled_programs() -> None:
    """Have all processes of this run and of later ones share what they compile.

    Most programs of the tests are compiled in many processes. Loading one takes an eighth of the time of compiling it.
    JAX names a program by a hash of all that it is compiled from: operations, options and the compiler's version.
    A variable of JAX that is set already stays as it is.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # as in the processes that xdist starts
        return
    folder = COMPILED / _processor()
    if sum(path.stat().st_size for path in COMPILED.rglob("*") if path.is_file()) > COMPILED_BYTES:
        shutil.rmtree(COMPILED, ignore_errors=True)
    with suppress(OSError):  # of a checkout that is only read, for which nothing is kept
        folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # XLA logs an error for each program that it loads on a CPU: it compares the machine with preferences of the
        # compiler, which no machine has.
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    os.environ.update(variables | {name: os.environ[name] for name in variables if name in os.environ})


def let_children_be_interrupted() -> None:
    """Have SIGINT interrupt the processes that tests start.

    A shell lets the commands that it starts in the background ignore SIGINT, and their children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def log_plain_tracebacks() -> None:
    """Let log lines have Python's own tracebacks. Those of rich show all local variables, which can take seconds."""
    *others, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*others, renderer])
