"""The errors that a client can get, by code. ``error.code`` in a response is always one of these."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """The codes of errors, which clients may rely on."""

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
    MISSING_QUESTIONS = "missing_questions"
    INVALID_QUESTION = "invalid_question"
    TOO_MANY_QUESTIONS = "too_many_questions"
    TOO_MANY_OPTIONS = "too_many_options"
    LABELS_NOT_SINGLE_TOKENS = "labels_not_single_tokens"
    IMAGES_NOT_SUPPORTED = "images_not_supported"
    MIXED_INPUT_TYPES = "mixed_input_types"
    DELIMITER_IN_INPUT = "delimiter_in_input"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_JSON = "invalid_json"
    INVALID_REQUEST = "invalid_request"
    INVALID_TEMPLATE = "invalid_template"
    INVALID_ARTEFACT = "invalid_artefact"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    UNKNOWN_PARAMETER = "unknown_parameter"
    WEBHOOK_URL_FORBIDDEN = "webhook_url_forbidden"
    INVALID_API_KEY = "invalid_api_key"
    INSUFFICIENT_SCOPE = "insufficient_scope"
    NOT_FOUND = "not_found"
    MODEL_NOT_FOUND = "model_not_found"
    JOB_NOT_FOUND = "job_not_found"
    FILE_NOT_FOUND = "file_not_found"
    BATCH_NOT_FOUND = "batch_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    JOB_NOT_FINISHED = "job_not_finished"
    JOB_CANCELLED = "job_cancelled"
    JOB_FAILED = "job_failed"
    INVALID_FILE = "invalid_file"
    FILE_IN_USE = "file_in_use"
    BATCH_EXPIRED = "batch_expired"
    BATCH_CANCELLED = "batch_cancelled"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    HEADERS_TOO_LARGE = "headers_too_large"
    REQUEST_TIMEOUT = "request_timeout"
    TOO_MANY_OPEN_REQUESTS = "too_many_open_requests"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    QUOTA_EXCEEDED = "quota_exceeded"
    INTERNAL_ERROR = "internal_error"
    OVERLOADED = "overloaded"
    MODEL_UNAVAILABLE = "model_unavailable"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    SERVER_STOPPING = "server_stopping"
    SERVER_STARTING = "server_starting"
    TIMEOUT = "timeout"


class RequestError(Exception):
    """A request that can't be served, with what its sender needs to correct it."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        limit: str | None = None,
        job_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param  # path of the wrong value in the body, such as "items[3]"
        self.retry_after = retry_after  # seconds, if trying again may help
        self.limit = limit  # name of the setting whose limit the request exceeds, if that is what is wrong
        self.job_id = job_id  # of the job whose end, or whose time, the error is about


def invalid(message: str, param: str | None = None) -> RequestError:
    """Return the error of a request that is not formed as it should be. param: the path of the wrong value."""
    return RequestError(ErrorCode.INVALID_REQUEST, message, param=param)
