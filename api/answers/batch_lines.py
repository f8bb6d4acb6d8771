"""The lines of a batch's output file and error file, in the envelope of OpenAI's interface."""

from __future__ import annotations

import json

from api.answers.error_responses import STATUS, error_body
from api.answers.presentation import encode, encode_object
from scoring.error_codes import ErrorCode, RequestError


def line_id(batch_id: str, number: int) -> str:
    """Return the id of a line. number: counted from 0."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{number}"


def encode_answer(batch_id: str, number: int, custom_id: str | None, job_id: str, body: bytes) -> bytes:
    """Return the line of a request that was answered. body: the encoded answer."""
    return _line(batch_id, number, custom_id, _response(200, job_id, body), b"null")


def encode_refusal(batch_id: str, number: int, custom_id: str | None, error: RequestError) -> bytes:
    """Return the line of a request that failed, with the error that it would have got if it had been sent alone."""
    # As ASCII, because a message may quote what the client sent, which may not be encodable as UTF-8.
    body = json.dumps(error_body(error.code, error.message, error.param)).encode()
    response = _response(STATUS[error.code], line_id(batch_id, number), body)
    return _line(batch_id, number, custom_id, response, b"null")


def encode_unscored(batch_id: str, number: int, custom_id: str | None, code: ErrorCode) -> bytes:
    """Return the line of a request that was not scored before its batch expired or was cancelled."""
    how = "expired" if code is ErrorCode.BATCH_EXPIRED else "was cancelled"
    error = encode({"code": str(code), "message": f"this request was not scored before its batch {how}"})
    return _line(batch_id, number, custom_id, b"null", error)


def _response(status: int, request_id: str, body: bytes) -> bytes:
    return encode_object({"status_code": status, "request_id": request_id, "body": body})


def _line(batch_id: str, number: int, custom_id: str | None, response: bytes, error: bytes) -> bytes:
    fields = {"id": line_id(batch_id, number), "custom_id": custom_id, "response": response, "error": error}
    return encode_object(fields) + b"\n"
