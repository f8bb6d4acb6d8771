"""The error envelope: all failures have one shape, whether a route or the framework reports them.

The shape is OpenAI's, ``{"error": {"message", "type", "param", "code"}}``, so clients that were written for it can read
it. An error about the job of a call has its ``job_id``, too. ``code`` is one of :class:`scoring.error_codes.ErrorCode`,
also for errors that the framework reports before a route is reached.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.answers.examples import JOB_ID
from api.answers.schemas.jobs import ErrorEnvelope
from jobs.store.database import NotMigratedError, StorageUnavailable
from scoring.error_codes import ErrorCode, RequestError, invalid

STATUS: dict[ErrorCode, int] = dict.fromkeys(ErrorCode, 400) | {
    ErrorCode.INVALID_API_KEY: 401,
    ErrorCode.INSUFFICIENT_SCOPE: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.MODEL_NOT_FOUND: 404,
    ErrorCode.JOB_NOT_FOUND: 404,
    ErrorCode.FILE_NOT_FOUND: 404,
    ErrorCode.BATCH_NOT_FOUND: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.JOB_NOT_FINISHED: 409,
    ErrorCode.JOB_CANCELLED: 409,
    ErrorCode.JOB_FAILED: 409,
    ErrorCode.FILE_IN_USE: 409,
    ErrorCode.IDEMPOTENCY_IN_PROGRESS: 409,
    ErrorCode.REQUEST_TIMEOUT: 408,
    ErrorCode.REQUEST_TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: 415,
    ErrorCode.IDEMPOTENCY_KEY_REUSED: 422,
    ErrorCode.TOO_MANY_OPEN_REQUESTS: 429,
    ErrorCode.RATE_LIMIT_EXCEEDED: 429,
    ErrorCode.QUOTA_EXCEEDED: 429,
    ErrorCode.HEADERS_TOO_LARGE: 431,
    ErrorCode.INTERNAL_ERROR: 500,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.MODEL_UNAVAILABLE: 503,
    ErrorCode.STORAGE_UNAVAILABLE: 503,
    ErrorCode.SERVER_STOPPING: 503,
    ErrorCode.SERVER_STARTING: 503,
    ErrorCode.TIMEOUT: 504,
}
"""The HTTP status of each code; 400 for the codes that are not listed."""

_NOTED = "scoreline.noted"
"""The key of a request's scope under which is what the access log says of it."""

STORAGE_RETRY_SECONDS = 2.0
"""The ``Retry-After`` while the database is unavailable: about the time of a restart or of the start of a failover."""

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""OpenAI's error types by status; other 4xx have ``invalid_request_error``, and 5xx ``server_error``."""

_CODE_BY_FRAMEWORK_STATUS = {
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    413: ErrorCode.REQUEST_TOO_LARGE,
    415: ErrorCode.UNSUPPORTED_MEDIA_TYPE,
}


def error_body(error: RequestError) -> dict[str, dict[str, str | None]]:
    """Return the envelope as plain data."""
    status = STATUS[error.code]
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    of_job = {} if error.job_id is None else {"job_id": error.job_id}
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": str(error.code), **of_job}}


def encode_error(error: RequestError) -> bytes:
    """Return the envelope as JSON: as ASCII, because a message may quote what can't be encoded as UTF-8."""
    return json.dumps(error_body(error)).encode()


def retry_seconds(error: RequestError) -> int | None:
    """Return the ``Retry-After`` of an error, if trying again may help."""
    return None if error.retry_after is None else max(1, math.ceil(error.retry_after))


def _repeating_helps(code: ErrorCode) -> bool:
    """Return whether a client may get another answer if it sends the same request again.

    OpenAI's client repeats a request by itself after each of these statuses, unless it is told not to. After a 504 that
    would be another job beside the one that goes on.
    """
    if STATUS[code] == 409:
        return code is ErrorCode.IDEMPOTENCY_IN_PROGRESS
    return code not in (ErrorCode.TIMEOUT, ErrorCode.QUOTA_EXCEEDED)


def note(scope: Scope, **facts: str | None) -> None:
    """Have the access log, and the count of errors, say something more about a request."""
    if _NOTED in scope:
        scope[_NOTED].update(facts)


def noted_of(scope: Scope) -> dict[str, str | None]:
    """Return what is noted of a request from now on. Whoever changes the scope on its way keeps this dictionary."""
    noted: dict[str, str | None] = scope.setdefault(_NOTED, {})
    return noted


class _ErrorResponse(Response):
    """A response that notes its error code."""

    code: ErrorCode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note(scope, code=str(self.code))
        await super().__call__(scope, receive, send)


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response to a request that failed with ``error``."""
    all_headers = dict(headers or {})
    if (seconds := retry_seconds(error)) is not None:
        all_headers["Retry-After"] = str(seconds)
    if error.code is ErrorCode.INVALID_API_KEY:
        all_headers["WWW-Authenticate"] = "Bearer"
    if not _repeating_helps(error.code):
        all_headers["x-should-retry"] = "false"
    response = _ErrorResponse(encode_error(error), STATUS[error.code], all_headers, media_type="application/json")
    response.code = error.code
    return response


def storage_unavailable(message: str = "the database is unavailable; please try again") -> RequestError:
    """Return the error for a database that can't be used now. The request has changed nothing."""
    return RequestError(ErrorCode.STORAGE_UNAVAILABLE, message, retry_after=STORAGE_RETRY_SECONDS)


def install_error_handlers(app: FastAPI) -> None:
    """Answer with the envelope to errors that routes raise and to errors of the framework."""
    app.add_exception_handler(RequestError, _on_failure)
    app.add_exception_handler(StorageUnavailable, _on_failure)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameter)
    app.add_exception_handler(HTTPException, _on_framework_error)


def answer_to_failure(request: Request, error: RequestError | StorageUnavailable) -> Response:
    """Return the response to a request that failed, and count it if a limit refused it."""
    if isinstance(error, NotMigratedError):
        return error_response(storage_unavailable(str(error)))
    if isinstance(error, StorageUnavailable):
        return error_response(storage_unavailable())
    if error.limit is not None:
        request.app.state.service.metrics.count_refused(error.limit)
    return error_response(error)


async def _on_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError | StorageUnavailable)
    return answer_to_failure(request, error)


async def _on_invalid_parameter(_: Request, error: Exception) -> Response:
    """Answer to a path, query or header parameter that does not fit its declaration. Bodies are checked elsewhere."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return error_response(invalid(f"{name}: {first['msg']}", name))


async def _on_framework_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODE_BY_FRAMEWORK_STATUS.get(error.status_code)
    if code is None:
        code = ErrorCode.INTERNAL_ERROR if error.status_code >= 500 else ErrorCode.INVALID_REQUEST
    if code is ErrorCode.METHOD_NOT_ALLOWED:
        methods = _allowed_methods(request)
        message = f"{request.method} is not allowed here; allowed: {methods}"
        return error_response(RequestError(code, message), {"Allow": methods})
    message = "there is nothing at this path" if code is ErrorCode.NOT_FOUND else str(error.detail)
    return error_response(RequestError(code, message), error.headers)


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes of a path: the ``Allow`` header must list them all (RFC 9110).

    A path that a route has word for word, such as that of sets of jobs, is no id of another route.
    """
    routes: list[APIRoute] = request.app.state.routes
    found = [route for route in routes if route.path_regex.match(request.url.path)]
    found = [route for route in found if route.path == request.url.path] or found
    methods = {method for route in found for method in route.methods or ()}
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))


def secured(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    """Return what :func:`documented` does, plus the errors of a route that authenticates its caller."""
    return documented(*codes, *(code for code in _AUTHENTICATION_ERRORS if code not in codes))


def documented(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI ``responses`` of a route that can fail with ``codes``, with an example for each code."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for code in (*codes, *(code for code in _ANY_REQUEST_ERRORS if code not in codes)):
        entry = by_status.setdefault(
            STATUS[code], {"model": ErrorEnvelope, "description": "", "content": {"application/json": {"examples": {}}}}
        )
        entry["description"] = ", ".join(filter(None, (entry["description"], f"`{code}`")))
        job_id = JOB_ID if code in (ErrorCode.TIMEOUT, ErrorCode.SERVER_STOPPING) else None
        error = RequestError(code, _EXAMPLES.get(code, code.replace("_", " ")), job_id=job_id)
        entry["content"]["application/json"]["examples"][str(code)] = {"value": error_body(error)}
    for status in (429, 503):
        if status in by_status:
            by_status[status]["headers"] = {
                "Retry-After": {"description": "seconds to wait before trying again", "schema": {"type": "integer"}}
            }
    return by_status


_ANY_REQUEST_ERRORS = (
    ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.HEADERS_TOO_LARGE,
    ErrorCode.OVERLOADED,
    ErrorCode.INTERNAL_ERROR,
)
"""The errors that every route can answer with, because the server itself refuses the request."""

_AUTHENTICATION_ERRORS = (
    ErrorCode.INVALID_API_KEY,
    ErrorCode.INSUFFICIENT_SCOPE,
    ErrorCode.RATE_LIMIT_EXCEEDED,
    ErrorCode.TOO_MANY_OPEN_REQUESTS,
    ErrorCode.STORAGE_UNAVAILABLE,
)

_EXAMPLES = {
    ErrorCode.MISSING_QUERY: "query is required",
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: "items[3] makes a sequence of 5000 tokens; the model takes 4096",
    ErrorCode.MODEL_UNAVAILABLE: "the workers of qwen3 serve something else than this server; see /readyz",
    ErrorCode.TIMEOUT: f"not scored within 60 s; {JOB_ID} goes on",
    ErrorCode.SERVER_STOPPING: f"this server stops; {JOB_ID} goes on, and the same request finds it",
    ErrorCode.INTERNAL_ERROR: "internal error; please quote request id 5b0c…",
    ErrorCode.JOB_NOT_FOUND: "there is no such job",
    ErrorCode.FILE_NOT_FOUND: "there is no such file",
    ErrorCode.BATCH_NOT_FOUND: "there is no such batch",
    ErrorCode.INVALID_FILE: 'the purpose of the input file must be "batch", not "batch_output"',
    ErrorCode.FILE_IN_USE: "a batch that has not ended reads this file; cancel the batch first",
}
