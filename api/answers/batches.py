"""Convert batches to the JSON of responses, whose shapes are documented in ``api.answers.batch_schemas``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jobs.file_batches.reading import BatchProgress, BatchRecord
from jobs.file_batches.tables import BatchStatus
from scoring.error_codes import ErrorCode


def show_batch(batch: BatchRecord, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the batch object. Its files are named once it has ended, because they are complete then.

    warnings: about the request that created it.
    """
    ended = {status: batch.ended_at if batch.status is status else None for status in BatchStatus}
    has_ended = batch.status.ended
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": None if batch.error_message is None else _errors(batch, batch.error_message),
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": str(batch.status),
        "output_file_id": batch.output_file_id if has_ended else None,
        "error_file_id": batch.error_file_id if has_ended else None,
        "created_at": _seconds(batch.created_at),
        "in_progress_at": _seconds(batch.in_progress_at),
        "expires_at": _seconds(batch.expires_at),
        "finalizing_at": _seconds(batch.finalizing_at),
        "completed_at": _seconds(ended[BatchStatus.COMPLETED]),
        "failed_at": _seconds(ended[BatchStatus.FAILED]),
        "expired_at": _seconds(ended[BatchStatus.EXPIRED]),
        "cancelling_at": _seconds(batch.cancelling_at),
        "cancelled_at": _seconds(ended[BatchStatus.CANCELLED]),
        "request_counts": show_counts(batch),
        "usage": {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch.prompt_tokens,
        },
        "metadata": dict(batch.metadata),
        "webhook": None
        if batch.webhook is None
        else {"url": batch.webhook.url, "events": [str(event) for event in batch.webhook.events]},
        **({"warnings": list(warnings)} if warnings else {}),
    }


def show_counts(batch: BatchRecord | BatchProgress) -> dict[str, int]:
    """Return how many lines a batch has, and how many of them are written."""
    return {"total": batch.total_lines, "completed": batch.completed_lines, "failed": batch.failed_lines}


def _errors(batch: BatchRecord, message: str) -> dict[str, Any]:
    """Return why a batch has failed or, while it is in progress, why its further lines wait."""
    has_failed = batch.status is BatchStatus.FAILED
    error = {
        "code": str(ErrorCode.INVALID_FILE if has_failed else ErrorCode.QUOTA_EXCEEDED),
        "message": message,
        "param": "input_file_id" if has_failed else None,
        "line": None,
    }
    return {"object": "list", "data": [error]}


def _seconds(time: float | None) -> int | None:
    return None if time is None else math.floor(time)
