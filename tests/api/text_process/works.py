"""Functions that the process for long bodies is asked to call in place of reading a body."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from api.batches.reading import ReadLine, read_lines
from api.reading import ReadingContext

WORKING = "working"


def work_for_ever(*_: object) -> None:
    """Never return, and never ask whether somebody still wants the result. The process is named WORKING meanwhile."""
    Path("/proc/self/comm").write_text(WORKING)
    while True:
        pass


def give_back(_: ReadingContext, body: bytes) -> bytes:
    """Return the body."""
    return body


def be_killed_for_poison(reading: ReadingContext, body: bytes, *given: Any) -> list[ReadLine]:
    """Read lines of a batch, but be killed, as the kernel does for want of memory, if one of them is poison."""
    if b"poison" in body:
        os.kill(os.getpid(), signal.SIGKILL)
    return read_lines(reading, body, *given)


class Bug(BaseException):
    """What a library raises for a bug in its Rust code is no Exception either."""


def fail(*_: object) -> None:
    """Fail as a library with a bug does."""
    raise Bug("a bug of a library")
