"""The exceptions of the client: one base, :class:`ScorelineError`, and a class for each kind of failure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scoreline.client.batch_objects import Batch
    from scoreline.client.job_objects import Job


class ScorelineError(Exception):
    """An operation that failed.

    ``code`` is one of the service's codes of errors, or one of those that the client has for itself: ``unreachable``,
    ``unexpected_response``, ``timeout``.
    """

    def __init__(
        self,
        code: str,
        message: str,
        status: int = 0,
        *,
        param: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        job_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code  # what kind of failure it is
        self.message = message  # what has happened, in words
        self.status = status  # the HTTP status; 0 if the error is not an answer of the service
        self.param = param  # what is wrong in the request, such as "items[3]"
        self.request_id = request_id  # by which the operator finds the request in the service's log
        self.retry_after = retry_after  # seconds after which trying again may help, if the service said so
        self.job_id = job_id  # the job that the error is about, if it is about one
        self.is_final = False  # whether it is known that the same request would fail again

    def __reduce__(self) -> tuple[Any, ...]:
        """Let other processes have it: those of multiprocessing, Ray and Spark raise the errors of their workers."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[ScorelineError], args: tuple[Any, ...], details: dict[str, Any]) -> ScorelineError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(details)
    return error


class Unreachable(ScorelineError):  # noqa: N818 (the names of these errors say what has happened)
    """There was no answer: nothing listens there, the connection broke off, or it took too long.

    ``never_answered`` says whether the service has never answered this client, so that its address may be wrong.
    """

    never_answered = False


class UnexpectedResponse(ScorelineError):  # noqa: N818
    """Something else than Scoreline has answered."""


class InvalidRequest(ScorelineError):  # noqa: N818
    """The request is wrong. ``param`` says where; sending it again does not help."""


class RequestTooLarge(InvalidRequest):
    """The request is larger than the service takes. If it can be sent as a job of any size, the message says so."""

    def __init__(self, code: str, message: str, status: int = 0, **details: Any) -> None:
        if re.search(r"/v1/jobs|JSON lines", message) and "client.upload" not in message:
            message += " (client.upload or client.upload_likelihood does this, and client.wait waits for the end)"
        super().__init__(code, message, status, **details)


class Unauthorized(ScorelineError):  # noqa: N818
    """There is no key, or it is not valid."""


class PermissionDenied(ScorelineError):  # noqa: N818
    """The key is valid, and does not allow this."""


class NotFound(ScorelineError):  # noqa: N818
    """There is no such job, file, batch or model, or it belongs to another tenant."""


class Conflict(ScorelineError):  # noqa: N818
    """The state of a job, a file or an earlier request does not allow this."""


class RateLimited(ScorelineError):  # noqa: N818
    """Too many requests. ``retry_after`` says when to send the next one."""


class QuotaExceeded(ScorelineError):  # noqa: N818
    """A quota of the tenant is used up. ``retry_after`` says when there may be room again."""


class Unavailable(ScorelineError):  # noqa: N818
    """The service can't take the request now."""


class Overloaded(Unavailable):
    """Too much work waits already. ``retry_after`` says when to try again."""


class TimedOut(ScorelineError, TimeoutError):  # noqa: N818
    """The time that the caller gave is over. The job ``job_id`` goes on, unless the message says otherwise."""


class InternalError(ScorelineError):
    """The service failed. ``request_id`` names the entry in its log."""


class JobEnded(ScorelineError):  # noqa: N818
    """A job has ended without success. ``job`` is the job, if it was being waited for."""

    job: Job | None = None


class JobFailed(JobEnded):
    """A job failed. ``code`` and ``message`` say why."""


class JobCancelled(JobEnded):
    """A job was cancelled."""


class JobExpired(JobEnded):
    """A job was not scored within its ``expires_in``."""


class BatchEnded(ScorelineError):  # noqa: N818
    """A batch has ended without being completed. ``batch`` is the batch, if it was being waited for."""

    batch: Batch | None = None


class BatchFailed(BatchEnded):
    """The file of a batch can't be read as lines."""


class BatchCancelled(BatchEnded):
    """A batch was cancelled. What was scored before is in its output file."""


class BatchExpired(BatchEnded):
    """A batch was not completed within its window. What was scored in time is in its output file."""


_BY_CODE: Mapping[str, type[ScorelineError]] = {
    "unreachable": Unreachable,
    "unexpected_response": UnexpectedResponse,
    "request_too_large": RequestTooLarge,
    "rate_limit_exceeded": RateLimited,
    "too_many_open_requests": RateLimited,
    "quota_exceeded": QuotaExceeded,
    "overloaded": Overloaded,
    "timeout": TimedOut,
    "job_failed": JobFailed,
    "job_cancelled": JobCancelled,
    "batch_cancelled": BatchCancelled,
    "batch_expired": BatchExpired,
}

_BY_STATUS: Mapping[int, type[ScorelineError]] = {
    401: Unauthorized,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    429: RateLimited,
    500: InternalError,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def error_for(code: str, message: str, status: int = 0, **details: Any) -> ScorelineError:
    """Return the error for a code of the service, or, if it is unknown here, for the HTTP status."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = InvalidRequest if 400 <= status < 500 else ScorelineError
    return kind(code, message, status, **details)
