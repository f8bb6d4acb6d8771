"""Examples of answers in the OpenAPI document, one for each shape that a route answers with."""

from __future__ import annotations

from typing import Any

from public_api.paths import job_urls
from settings.version import VERSION

JOB_ID = "job_0198f3a2-7c4e-7d10-9b5a-3f2e8c6d1a07"

_URL = "https://hooks.example.com/scores"
_USAGE = {
    "prompt_tokens": 25,
    "completion_tokens": 0,
    "total_tokens": 25,
    "prompt_tokens_details": {"cached_tokens": 11},
    "reused_items": 0,
}
_SCORES: dict[str, Any] = {
    "id": JOB_ID,
    "object": "scoring",
    "model": "demonstration",
    "created": 1785000000,
    "scores": [[0.856, 0.144], [0.00006, 0.99994]],
    "usage": _USAGE,
    "warnings": [],
}
_JOB: dict[str, Any] = {
    "id": JOB_ID,
    "object": "scoring.job",
    "kind": "score",
    "label_scoring": "token",
    "model": "demonstration",
    "status": "succeeded",
    "priority": "normal",
    "progress": {"total_items": 2, "scored_items": 2},
    "created_at": 1785000000.113,
    "started_at": 1785000000.121,
    "finished_at": 1785000000.158,
    "queued_seconds": 0.008,
    "expires_at": None,
    "usage": _USAGE,
    "metadata": {"run": "7"},
    "warnings": [],
    "error": None,
    "webhook": None,
    "urls": job_urls(JOB_ID),
}
_DELIVERY: dict[str, Any] = {
    "id": "msg_0198f3a2-7d02-7c11-8a3b-5e4d9f7c2b18",
    "object": "webhook.delivery",
    "job_id": JOB_ID,
    "batch_id": None,
    "event": "job.succeeded",
    "url": _URL,
    "state": "delivered",
    "created_at": 1785000000.158,
    "next_attempt_at": None,
    "attempts": [
        {
            "number": 1,
            "started_at": 1785000000.201,
            "seconds": 0.085,
            "outcome": "delivered",
            "detail": "",
            "status": 204,
            "response": "",
        }
    ],
    "endpoint": {"failing_since": None, "disabled_at": None},
}
_MODEL: dict[str, Any] = {
    "id": "demonstration",
    "object": "model",
    "created": 1785000000,
    "owned_by": "scoreline",
    "parent": None,
    "aliases": [],
    "version": None,
    "max_model_len": 1024,
    "vocabulary": 2000,
    "delimiter": None,
    "classes": None,
    "template": "demonstration",
    "templates": [
        {
            "name": "demonstration",
            "labels": [" yes", " no"],
            "relevance": "softmax(0)",
            "digest": "6a09e667f3bcc908b2fb1366ea957d3e",
        }
    ],
    "artefacts": [
        {
            "name": "sure",
            "kind": "threshold",
            "labels": ["positive", "negative"],
            "id": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
        }
    ],
    "live_workers": 1,
}
_READY: dict[str, Any] = {
    "status": "ok",
    "model": {
        "id": "demonstration",
        "tokenizer": "5b0c6a1f93d2",
        "vocabulary": 2000,
        "max_model_len": 1024,
        "delimiter": None,
    },
    "workers": {"live": 1, "matching": 1},
    "warnings": [],
}

_FILE_ID = "file_0198f3a27c4e7d109b5a3f2e8c6d1a07"
_BATCH_ID = "batch_0198f3a27c4e7d109b5a3f2e8c6d1a08"
_FILE: dict[str, Any] = {
    "id": _FILE_ID,
    "object": "file",
    "bytes": 271,
    "created_at": 1785000000,
    "expires_at": 1787592000,
    "filename": "lines.jsonl",
    "purpose": "batch",
    "status": "processed",
    "status_details": None,
}
_BATCH: dict[str, Any] = {
    "id": _BATCH_ID,
    "object": "batch",
    "endpoint": "/v1/score",
    "model": "demonstration",
    "errors": None,
    "input_file_id": _FILE_ID,
    "completion_window": "24h",
    "status": "completed",
    "output_file_id": "file_0198f3a27c4e7d109b5a3f2e8c6d1a09",
    "error_file_id": None,
    "created_at": 1785000000,
    "in_progress_at": 1785000000,
    "expires_at": 1785086400,
    "finalizing_at": 1785000002,
    "completed_at": 1785000002,
    "failed_at": None,
    "expired_at": None,
    "cancelling_at": None,
    "cancelled_at": None,
    "request_counts": {"total": 2, "completed": 2, "failed": 0},
    "usage": {
        "input_tokens": 25,
        "input_tokens_details": {"cached_tokens": 11},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 25,
    },
    "metadata": {"run": "7"},
    "webhook": None,
}


def _page(entry: dict[str, Any]) -> dict[str, Any]:
    ends = {"first_id": entry["id"], "last_id": entry["id"]}
    return {"object": "list", "data": [entry], **ends, "has_more": False}


_RANKING: dict[str, Any] = {
    "id": JOB_ID,
    "object": "list",
    "model": "demonstration",
    "results": [
        {
            "index": 1,
            "relevance_score": 0.856,
            "score": 0.856,
            "label_mass": 0.9999,
            "document": {"text": "Water the fern once a week."},
        }
    ],
    "usage": {"prompt_tokens": 45, "total_tokens": 45},
    "meta": {"billed_units": {"search_units": 1}},
    "warnings": [],
}
ANSWERS: dict[str, dict[str, Any]] = {
    "File": _FILE,
    "FileList": _page(_FILE),
    "DeletedFile": {"id": _FILE_ID, "object": "file", "deleted": True},
    "Batch": _BATCH,
    "DeletedBatch": {"id": _BATCH["id"], "object": "batch", "deleted": True},
    "BatchList": _page(_BATCH),
    "ScoreResponse": _SCORES,
    "LikelihoodResponse": {
        "id": JOB_ID,
        "object": "likelihood",
        "model": "demonstration",
        "created": 1785000000,
        "logprob": [-1.386, -9.21],
        "num_tokens": [1, 5],
        "is_greedy": [True, False],
        "usage": _USAGE,
        "warnings": [],
    },
    "SystemOneResponse": {
        "id": JOB_ID,
        "model": "demonstration",
        "answers": {
            "refund": {"type": "noul", "noul": 0.982},
            "team": {
                "type": "choice",
                "choice": "billing",
                "confidence": 0.9,
                "probabilities": {"billing": 0.95, "delivery": 0.05},
            },
        },
        "usage": {"input_tokens": 120, "output_tokens": 0, "cached_tokens": 0},
        "diagnostics": {
            "refund": {"label_mass": 0.9999, "argmax_is_label": True},
            "team": {"label_mass": 0.998, "argmax_is_label": True},
        },
        "warnings": [],
    },
    "DecisionsResponse": {
        "id": JOB_ID,
        "object": "decision",
        "model": "demonstration",
        "answers": [{"type": "predicate", "name": None, "probability": 0.982}],
        "usage": {
            "input_tokens": 60,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 60,
        },
        "diagnostics": [{"label_mass": 0.9999, "argmax_is_label": True}],
        "warnings": [],
    },
    "CompletionResponse": {
        "id": JOB_ID,
        "object": "text_completion",
        "created": 1785000000,
        "model": "demonstration",
        "choices": [
            {
                "index": 0,
                "text": "The capital",
                "logprobs": {
                    "tokens": ["The", " capital"],
                    "token_logprobs": [None, -4.25],
                    "top_logprobs": [None, {" capital": -4.25, " first": -2.5}],
                    "text_offset": [0, 3],
                },
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 0,
            "total_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "warnings": [],
    },
    "RerankResponse": _RANKING,
    "EitherRanking": _RANKING,
    "Job": _JOB | {"result": _SCORES},
    "DryRun": {
        "object": "scoring.dry_run",
        "model": "demonstration",
        "total_items": 2,
        "usage": _USAGE,
        "work": 14,
        "stored_bytes": 184,
        "plan": [{"algorithm": "serial", "items": 2, "reason": "the query has 11 tokens, fewer than 64"}],
        "estimated_seconds": 0.012,
        "estimated_wait_seconds": 0.0,
        "calibrated": True,
        "waits_for": [],
        "warnings": [],
    },
    "JobList": {"object": "list", "data": [_JOB], "has_more": False},
    "JobSet": {"object": "list", "data": [{"status_code": 200, "retry_after": None, "body": _JOB}]},
    "DeletedJob": {"id": JOB_ID, "object": "scoring.job", "deleted": True},
    "ScoreList": {
        "object": "list",
        "data": [{"index": 0, "scores": [0.856, 0.144]}, {"index": 1, "scores": [0.00006, 0.99994]}],
        "has_more": False,
        "next_offset": None,
    },
    "JobItems": {
        "object": "list",
        "query": {"text": "The capital of France is", "tokens": 5, "is_cut": False},
        "labels": [{"ids": [311], "text": " Paris"}, {"ids": [315], "text": " London"}],
        "data": [{"index": 0, "text": " a city", "tokens": 2, "is_cut": False}],
    },
    "Delivery": _DELIVERY,
    "DeliveryList": {"object": "list", "data": [_DELIVERY]},
    "WebhookSecretList": {
        "object": "list",
        "data": [
            {
                "object": "webhook.secret",
                "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "created_at": 1785000000.0,
                "expires_at": None,
            }
        ],
    },
    "Model": _MODEL,
    "ModelList": {
        "object": "list",
        "data": [_MODEL],
        "models": [
            {
                "name": "demonstration",
                "description": "demonstration: scores items, in 1024 tokens at most",
                "release_date": "2026-07-25",
            }
        ],
    },
    "Tokens": {"model": "demonstration", "tokens": [311], "pieces": [" yes"], "count": 1, "max_model_len": 1024},
    "PublishedKeys": {
        "keys": [
            {
                "kty": "OKP",
                "crv": "Ed25519",
                "x": "t14PMZi7Mn-_8nKYSNDWyGdCn00jGm-fKUfzQDyCGGE",
                "kid": "vEBJ0OSZxmKVBtvGLfVQxCjqn_oTwlXR1JQvZ9ZQ4pI",
                "use": "sig",
            }
        ]
    },
    "Health": {"status": "ok"},
    "Readiness": _READY,
    "Start": {
        "object": "service",
        "name": "scoreline",
        "version": VERSION,
        "documentation": "/docs",
        "openapi": "/openapi.json",
        "doors": [{"method": "POST", "path": "/v1/score", "summary": "Score items and wait for it."}],
    },
    "Overview": {
        "object": "overview",
        "version": VERSION,
        "model": "demonstration",
        "max_model_len": 1024,
        "template": "demonstration",
        "workers": [
            {
                "device": "cpu: AMD EPYC",
                "dtype": "float32",
                "started_at": 1785000000.0,
                "last_seen": 1785000600.5,
                "tokens_per_second": 5400.0,
            }
        ],
        "waiting": {"chunks": 12, "tokens": 43200, "oldest_seconds": 1.25, "estimated_seconds": 8.0},
        "warnings": [],
    },
    "JobEvent": {
        "type": "job.succeeded",
        "timestamp": "2026-07-25T17:20:00.158000+00:00",
        "data": {"id": JOB_ID, "status": "succeeded", "urls": job_urls(JOB_ID)},
    },
}
"""By the name of the shape in :mod:`api.answers.schemas.jobs` and its neighbours."""
