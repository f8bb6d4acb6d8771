"""The exit codes of the command: one for each kind of failure, so that a script can decide what to do next."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How the command ended. ``docs/command.md`` has the same table for users."""

    OK = 0
    FAILED = 1  # something that no other code names, such as a file that can't be written
    USAGE = 2  # a wrong option, argument or setting: the command did nothing
    UNAVAILABLE = 3  # the service, its database or its queue can't be reached or is overloaded: try again later
    REFUSED = 4  # the service understood the request and refused it: the input must be changed
    AUTHENTICATION = 5  # there is no key, it is wrong, or it may not do this
    JOB_FAILED = 6  # a job failed, expired or was cancelled
    TIMED_OUT = 124  # the time that the user allowed is over; the same number as of timeout(1)
    INTERRUPTED = 130  # Ctrl-C; the same number as in the shell


_BY_ERROR_CODE = {
    "invalid_api_key": ExitCode.AUTHENTICATION,
    "invalid_request": ExitCode.REFUSED,  # The client itself may refuse one, so that there is no status.
    "insufficient_scope": ExitCode.AUTHENTICATION,
    "job_cancelled": ExitCode.JOB_FAILED,
    "job_failed": ExitCode.JOB_FAILED,
    "timeout": ExitCode.TIMED_OUT,
    "idempotency_in_progress": ExitCode.UNAVAILABLE,
    "request_timeout": ExitCode.UNAVAILABLE,
    "unexpected_response": ExitCode.UNAVAILABLE,
}
"""The codes of the service's errors whose HTTP status does not tell the kind of failure."""

_NO_ANSWER = 0
_TOO_MANY_REQUESTS = 429


def exit_code_of(code: str, status: int) -> ExitCode:
    """Return the exit code for an error of the service.

    code: the error's code; status: its HTTP status, or 0 if there was no answer.
    """
    if code in _BY_ERROR_CODE:
        return _BY_ERROR_CODE[code]
    if status in (_NO_ANSWER, _TOO_MANY_REQUESTS) or status >= 500:
        return ExitCode.UNAVAILABLE
    return ExitCode.REFUSED


class CommandError(Exception):
    """Why a command failed, in one line for the terminal."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
