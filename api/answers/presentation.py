"""Jobs and scores as the responses show them. The shapes are documented in ``api.answers.schemas``.

JSON has no infinities. Scores never hold any; a log-probability of minus infinity (a label the model gives no chance at
all, to float32's precision) is written as ``null``, and so would an infinite logit be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from api.callers.compatibility import Standing
from checkpoints.card import ModelCard, shorten
from jobs.store.records import JobRecord, ScorePage, WorkerRecord
from jobs.webhooks.delivery_log import DeliveryRecord, LoggedAttempt
from jobs.webhooks.outbox import job_urls
from jobs.webhooks.secrets import WebhookSecret
from scoring.conversion import to_scores
from scoring.layout import LabelScores
from scoring.options import ScoreOptions

EMBEDDED_ITEMS = 1_000
"""Jobs of up to this many items carry their result in the job object; longer ones are read in pages."""

MEDIA_TYPE = "application/json"


def encode(value: Any) -> bytes:
    """JSON. What is not finite becomes ``null``."""
    return to_json(value, inf_nan_mode="null")


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response of plain data, or of JSON that was encoded already."""
    content = value if isinstance(value, bytes) else encode(value)
    return Response(content, status, headers, media_type=MEDIA_TYPE)


def show_job(job: JobRecord, result: ScorePage | None = None) -> dict[str, Any]:
    """The job object."""
    shown: dict[str, Any] = {
        "id": job.id,
        "object": "scoring.job",
        "model": job.model,
        "status": str(job.status),
        "priority": str(job.priority),
        "progress": {"total_items": job.total_items, "scored_items": job.scored_items},
        "created_at": _milliseconds(job.created_at),
        "started_at": _milliseconds(job.started_at),
        "finished_at": _milliseconds(job.finished_at),
        "expires_at": _milliseconds(job.expires_at),
        "usage": _usage(job),
        "metadata": dict(job.metadata),
        "warnings": list(job.warnings),
        "error": {"code": str(job.error.code), "message": job.error.message} if job.error is not None else None,
        "webhook": {"url": job.webhook.url, "events": list(job.webhook.events)} if job.webhook is not None else None,
        "urls": job_urls(job.id),
    }
    if result is not None:
        shown["result"] = show_scoring(result)
    return shown


def show_scoring(page: ScorePage) -> dict[str, Any]:
    """The response of ``/v1/score``: all scores of a job that succeeded."""
    job = page.job
    return {
        "id": job.id,
        "object": "scoring",
        "model": job.model,
        "created": math.floor(job.finished_at or job.created_at),
        **_columns(page.scores, job.options),
        "usage": _usage(job),
        "warnings": list(job.warnings),
    }


def show_lines(page: ScorePage) -> list[dict[str, Any]]:
    """One object an item: its index and what was asked for."""
    columns = _columns(page.scores, page.job.options)
    return [
        {"index": index, **{name: rows[n] for name, rows in columns.items()}}
        for n, index in enumerate(page.indices.tolist())
    ]


def show_page(page: ScorePage) -> dict[str, Any]:
    """A page of scores."""
    return {"object": "list", "data": show_lines(page), "has_more": page.has_more}


def show_delivery(delivery: DeliveryRecord) -> dict[str, Any]:
    """What was, or is to be, sent to a webhook."""
    endpoint = delivery.endpoint
    return {
        "id": delivery.id,
        "object": "webhook.delivery",
        "job_id": delivery.job_id,
        "event": delivery.event,
        "url": delivery.url,
        "state": str(delivery.state),
        "created_at": _milliseconds(delivery.created_at),
        "next_attempt_at": _milliseconds(delivery.next_attempt_at),
        "attempts": [_attempt(attempt) for attempt in delivery.attempts],
        "endpoint": {
            "failing_since": _milliseconds(endpoint.failing_since) if endpoint is not None else None,
            "disabled_at": _milliseconds(endpoint.disabled_at) if endpoint is not None else None,
        },
    }


def _attempt(attempt: LoggedAttempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "started_at": _milliseconds(attempt.started_at),
        "seconds": _milliseconds(attempt.seconds),
        "outcome": attempt.reason or "delivered",
        "detail": attempt.detail,
        "status": attempt.status,
        "response": attempt.response,
    }


def show_secrets(secrets: Sequence[WebhookSecret]) -> dict[str, Any]:
    """The secrets that webhooks are signed with."""
    return {
        "object": "list",
        "data": [
            {
                "object": "webhook.secret",
                "secret": one.secret,
                "created_at": _milliseconds(one.created_at),
                "expires_at": _milliseconds(one.expires_at),
            }
            for one in secrets
        ],
    }


def show_model(card: ModelCard, workers: Sequence[WorkerRecord]) -> dict[str, Any]:
    """A served model and who serves just that."""
    return {
        "id": card.name,
        "object": "model",
        "created": math.floor(min((worker.started_at for worker in workers), default=0)),
        "owned_by": "scoreline",
        "max_model_len": card.context_length,
        "vocabulary": card.vocabulary,
        "delimiter": card.delimiter,
        "live_workers": len(workers),
    }


def show_readiness(card: ModelCard, standing: Standing) -> dict[str, Any]:
    """What a process that is ready serves, and how the live workers compare."""
    return {
        "status": "ok",
        "model": {
            "id": card.name,
            "tokenizer": shorten(card.tokenizer_fingerprint),
            "vocabulary": card.vocabulary,
            "max_model_len": card.context_length,
            "delimiter": card.delimiter,
        },
        "workers": {"live": standing.live, "matching": len(standing.matching)},
        "warnings": list(standing.warnings),
    }


def _columns(scores: LabelScores, options: ScoreOptions) -> dict[str, list[list[float]]]:
    """What was asked for of N rows, each [N, M]."""
    columns = {"scores": to_scores(scores, options.apply_softmax).tolist()}
    if options.return_logprobs and scores.logprobs is not None:
        columns["logprobs"] = scores.logprobs.tolist()
    if options.return_logits:
        columns["logits"] = scores.logits.tolist()
    return columns


def _usage(job: JobRecord) -> dict[str, Any]:
    return {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": 0,
        "total_tokens": job.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens},
    }


def _milliseconds(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None else None
