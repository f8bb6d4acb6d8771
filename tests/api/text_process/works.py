"""Functions that the process for long bodies is asked to call in place of reading a body."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from api.reading import ReadingContext

WORKING = "working"


def work_for_ever(*_: object) -> None:
    """Never return, and never ask whether somebody still wants the result. The process is named WORKING meanwhile."""
    Path("/proc/self/comm").write_text(WORKING)
    while True:
        pass


def give_back(_: ReadingContext, body: bytes, __: Callable[[], None]) -> bytes:
    """Return the body."""
    return body


class Bug(BaseException):
    """What a library raises for a bug in its Rust code is no Exception either."""


def fail(*_: object) -> None:
    """Fail as a library with a bug does."""
    raise Bug("a bug of a library")
