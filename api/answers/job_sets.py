"""The answer about a set of jobs: what each of them would be answered if it were sent, or read, alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from api.answers.error_responses import STATUS, encode_error, retry_seconds
from api.answers.presentation import encode_object
from scoring.error_codes import RequestError


class Answer(NamedTuple):
    """What one job would be answered."""

    status: int
    body: bytes  # JSON
    retry_after: int | None = None  # seconds after which trying again may help


def show_error(error: RequestError) -> Answer:
    """Return the answer about a job that is refused, or that is missing."""
    return Answer(STATUS[error.code], encode_error(error), retry_seconds(error))


def encode_set(answers: Iterable[Answer]) -> bytes:
    """Return the answers about the jobs of a set as JSON, in their order."""
    entries = (
        encode_object({"status_code": one.status, "retry_after": one.retry_after, "body": one.body}) for one in answers
    )
    return b'{"object":"list","data":[%b]}' % b",".join(entries)
