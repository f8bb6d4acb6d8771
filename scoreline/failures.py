"""What the command says of an error of the client, and with which code it ends."""

from __future__ import annotations

import re

from scoreline.client import JobEnded, ScorelineError, Unreachable
from scoreline.exit_codes import CommandError, ExitCode, exit_code_of

WHERE_TO_FIND_A_SERVICE = "start a service with `scoreline up`, or name another one with --url or SCORELINE_URL"


def failure_of(error: ScorelineError, *, hint: str = "") -> CommandError:
    """Return the error of the command for one of the client. hint: what may help if the service is unavailable."""
    if isinstance(error, JobEnded):
        return CommandError(_joined(str(error), hint), ExitCode.JOB_FAILED)
    if (
        isinstance(error, Unreachable) and error.is_final
    ):  # nothing could be sent: what was given as its address, say, is none
        return CommandError(str(error), ExitCode.USAGE)
    code = exit_code_of(error.code, error.status)
    if isinstance(error, Unreachable) and error.never_answered:
        return CommandError(_joined(str(error), WHERE_TO_FIND_A_SERVICE), code)
    return CommandError(_joined(str(error), hint if code is ExitCode.UNAVAILABLE else ""), code)


def _joined(message: str, hint: str) -> str:
    return f"{message}; {hint}" if hint else message


_ARGUMENTS = {
    "a --label": "labels",
    "--label-column": "label_columns",
    "--restart": "restart=True",
    "--softmax": "apply_softmax=True",
    "--keep-duplicates": "keep_duplicates=True",
    "--means": "labels={name: label}",
}
"""What options of the command are called in Python, where that is not their own name."""


def in_python(message: str) -> str:
    """Return a message that names options of the command as it names the arguments of a call in Python."""

    def argument(found: re.Match[str]) -> str:
        option, value = found[1], found[2]
        name = _ARGUMENTS.get(option, option.removeprefix("--").replace("-", "_"))
        return name if value is None else f'{name}="{value}"'

    return re.sub(r"(a --label\b(?!-)|--[a-z][a-z-]*)(?: (skip|score|p_)\b)?", argument, message)
