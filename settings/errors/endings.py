"""How the processes of the service end, by the kind of failure, so that whoever starts them can decide what to do.

The command has the same numbers in ``scoreline/exit_codes.py``, which is published without this package.
"""

from __future__ import annotations

from enum import IntEnum


class Ending(IntEnum):
    """An exit code."""

    DONE = 0
    FAILED = 1  # something that no other code names; a new process may survive it
    MISCONFIGURED = 2  # a wrong setting, argument or model: a new process would fail in the same way
    UNAVAILABLE = 3  # the database can't be reached or is not ready: a later attempt may succeed


def in_one_line(error: BaseException) -> str:
    """Return an error's message on one line; its class if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
