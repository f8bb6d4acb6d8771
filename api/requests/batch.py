"""Parse and validate the body of ``POST /v1/batches``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from api.answers.schemas.batch import BatchBody
from api.reading import ReadingContext
from api.requests import refused_fields
from api.requests.fields import check_fields
from api.requests.headers.idempotency import idempotency_of
from api.requests.ids import checked_file_id
from api.requests.sender import Sender
from api.requests.submission import parse_object, read_metadata
from api.requests.webhook import read_webhook
from jobs.file_batches.creating import NewBatch
from jobs.store.webhook_events import BatchEvent
from public_api.paths import CALL_PATHS
from scoring.error_codes import invalid

ROUTE = "POST /v1/batches"

_WINDOW = re.compile(r"([1-9][0-9]{0,7})([smhd])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def read_batch(reading: ReadingContext, data: bytes, sender: Sender) -> tuple[NewBatch, tuple[str, ...]]:
    """Return the batch in a body, and warnings about unknown fields. Raises RequestError."""
    body = parse_object(data)
    warnings = check_fields(body, BatchBody.model_fields, refused_fields.BATCH, strict=sender.is_strict)
    idempotency = idempotency_of(sender.idempotency_key, ROUTE, data)
    file_id, endpoint = body.get("input_file_id"), body.get("endpoint")
    if not isinstance(file_id, str):
        raise invalid("input_file_id must be the id of a file", "input_file_id")
    if endpoint not in CALL_PATHS:
        raise invalid(f"endpoint must be one of {', '.join(CALL_PATHS)}", "endpoint")
    assert isinstance(endpoint, str)
    window, seconds = _window(body, reading.limits.max_completion_window_seconds)
    wanted = NewBatch(
        tenant=sender.principal.tenant,
        model=reading.models.catalogue.default.card.name,
        endpoint=endpoint,
        input_file_id=checked_file_id(file_id, "input_file_id"),
        completion_window=window,
        window_seconds=seconds,
        metadata=read_metadata(body),
        webhook=read_webhook(body, reading.webhook_rules, BatchEvent),
        idempotency=idempotency,
    )
    return wanted, warnings


def _window(body: Mapping[str, object], most: int) -> tuple[str, float]:
    value = body.get("completion_window")
    found = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if found is None or seconds > most:
        message = f"completion_window must be a time of at most {most} seconds, such as 24h, 90m or 7d"
        raise invalid(message, "completion_window")
    return found[0], float(seconds)
