"""Convert batches and files to the JSON of responses, whose shapes ``api.answers.schemas`` documents."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from api.answers.schemas.batch import Batch, BatchWebhook
from api.answers.schemas.file import File
from api.answers.shown import shown
from jobs.file_batches.reading import BatchProgress, BatchRecord
from jobs.file_batches.tables import BatchStatus
from jobs.files.reading import FileRecord
from scoring.error_codes import ErrorCode, RequestError


def show_batch(batch: BatchRecord, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the batch object. Its files are named once it has ended, because they are complete then.

    warnings: about the request that created it.
    """
    ended = {
        f"{status}_at": None if batch.ended_at is None or batch.status is not status else math.floor(batch.ended_at)
        for status in (BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)
    }
    return shown(
        Batch,
        batch,
        errors=None if batch.error_message is None else _errors(batch, batch.error_message),
        output_file_id=batch.output_file_id if batch.status.ended else None,
        error_file_id=batch.error_file_id if batch.status.ended else None,
        **ended,
        request_counts=show_counts(batch),
        usage={
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch.prompt_tokens,
        },
        webhook=None if batch.webhook is None else shown(BatchWebhook, batch.webhook),
        **({"warnings": list(warnings)} if warnings else {}),
    )


def show_file(file: FileRecord) -> dict[str, Any]:
    return shown(File, file, status_details=None)


def show_list(objects: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return a page of a list with the cursors of OpenAI's interface. objects: one more than the limit if there is."""
    page = list(objects[:limit])
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(objects) > limit,
    }


def show_counts(batch: BatchRecord | BatchProgress) -> dict[str, int]:
    """Return how many lines a batch has, and how many of them are written."""
    return {"total": batch.total_lines, "completed": batch.completed_lines, "failed": batch.failed_lines}


def pack_reason(error: RequestError) -> str:
    """Return why the lines of a batch wait, as its row holds it: a message for want of room, otherwise JSON."""
    if error.code is ErrorCode.QUOTA_EXCEEDED:  # so that an API of 0.3.0 can show it
        return error.message
    return json.dumps({"code": error.code, "message": error.message})


def _errors(batch: BatchRecord, reason: str) -> dict[str, Any]:
    """Return why a batch has failed or, while it is in progress, why its further lines wait."""
    has_failed = batch.status is BatchStatus.FAILED
    if has_failed:
        error = {"code": str(ErrorCode.INVALID_FILE), "message": reason}
    elif reason.startswith("{"):
        error = json.loads(reason)
    else:
        error = {"code": str(ErrorCode.QUOTA_EXCEEDED), "message": reason}
    return {"object": "list", "data": [error | {"param": "input_file_id" if has_failed else None, "line": None}]}
