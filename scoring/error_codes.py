"""Every error a client can be told of, by code. ``error.code`` in a response is one of these and nothing else."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Codes, grouped by the HTTP status they are answered with (see :data:`STATUS`)."""

    MISSING_QUERY = "missing_query"
    MISSING_ITEMS = "missing_items"
    MISSING_LABEL_TOKEN_IDS = "missing_label_token_ids"
    EMPTY_QUERY = "empty_query"
    EMPTY_LABEL_TOKEN_IDS = "empty_label_token_ids"
    INVALID_LABEL_TOKEN_IDS = "invalid_label_token_ids"
    TOO_MANY_LABELS = "too_many_labels"
    NEGATIVE_TOKEN_ID = "negative_token_id"
    TOKEN_ID_EXCEEDS_VOCAB = "token_id_exceeds_vocab"
    LABEL_NOT_SINGLE_TOKEN = "label_not_single_token"
    MIXED_INPUT_TYPES = "mixed_input_types"
    DELIMITER_IN_INPUT = "delimiter_in_input"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_JSON = "invalid_json"
    INVALID_REQUEST = "invalid_request"
    WEBHOOK_URL_FORBIDDEN = "webhook_url_forbidden"
    INVALID_API_KEY = "invalid_api_key"
    INSUFFICIENT_SCOPE = "insufficient_scope"
    NOT_FOUND = "not_found"
    MODEL_NOT_FOUND = "model_not_found"
    JOB_NOT_FOUND = "job_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    JOB_NOT_FINISHED = "job_not_finished"
    JOB_CANCELLED = "job_cancelled"
    JOB_FAILED = "job_failed"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    QUOTA_EXCEEDED = "quota_exceeded"
    INTERNAL_ERROR = "internal_error"
    OVERLOADED = "overloaded"
    MODEL_UNAVAILABLE = "model_unavailable"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    TIMEOUT = "timeout"


_BY_STATUS = {
    401: ("INVALID_API_KEY",),
    403: ("INSUFFICIENT_SCOPE",),
    404: ("NOT_FOUND", "MODEL_NOT_FOUND", "JOB_NOT_FOUND"),
    405: ("METHOD_NOT_ALLOWED",),
    409: ("JOB_NOT_FINISHED", "JOB_CANCELLED", "JOB_FAILED", "IDEMPOTENCY_IN_PROGRESS"),
    413: ("REQUEST_TOO_LARGE",),
    415: ("UNSUPPORTED_MEDIA_TYPE",),
    422: ("IDEMPOTENCY_KEY_REUSED",),
    429: ("RATE_LIMIT_EXCEEDED", "QUOTA_EXCEEDED"),
    500: ("INTERNAL_ERROR",),
    503: ("OVERLOADED", "MODEL_UNAVAILABLE", "STORAGE_UNAVAILABLE"),
    504: ("TIMEOUT",),
}
STATUS: dict[ErrorCode, int] = dict.fromkeys(ErrorCode, 400) | {
    ErrorCode[name]: status for status, names in _BY_STATUS.items() for name in names
}
"""The HTTP status of each code: 400 unless it says otherwise."""


class RequestError(Exception):
    """A request that can't be served, with what its sender needs to mend it.

    param: where in the body, as a path ("items[3]"); retry_after: seconds, where trying again may help.
    """

    def __init__(
        self, code: ErrorCode, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        """The HTTP status to answer with."""
        return STATUS[self.code]
