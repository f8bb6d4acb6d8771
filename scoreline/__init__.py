"""Scoreline: score items against a query with a causal language model.

``from scoreline import Client`` talks to a running service; ``scoreline up`` on the command line starts one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scoreline.client import *

__version__ = "0.3.0"
__all__ = [
    "Answer",
    "AsyncClient",
    "Batch",
    "BatchCancelled",
    "BatchEnd",
    "BatchEnded",
    "BatchEvent",
    "BatchExpired",
    "BatchFailed",
    "BatchProgress",
    "BatchResult",
    "Choice",
    "Client",
    "Conflict",
    "Decision",
    "Delivery",
    "DryRun",
    "File",
    "InternalError",
    "InvalidRequest",
    "ItemLikelihood",
    "ItemScores",
    "Job",
    "JobCancelled",
    "JobEnd",
    "JobEnded",
    "JobEvent",
    "JobExpired",
    "JobFailed",
    "JobFailure",
    "JobProgress",
    "JobScores",
    "JobStatus",
    "LabelNormalization",
    "LabelScoring",
    "LikelihoodResult",
    "MapProgress",
    "Model",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "PlannedItems",
    "Priority",
    "Provenance",
    "QuotaExceeded",
    "RankedDocument",
    "Ranking",
    "RateLimited",
    "RequestTooLarge",
    "Scale",
    "ScoreResult",
    "ScorelineError",
    "Template",
    "TimedOut",
    "Unauthorized",
    "Unavailable",
    "UnexpectedResponse",
    "Unreachable",
    "UntrustedWebhook",
    "WebhookEvent",
    "YesNo",
    "verify_webhook",
]


def __getattr__(name: str) -> Any:
    """Load the client when it is first used: server processes import this package without needing the client."""
    if name not in __all__:
        raise AttributeError(f"module 'scoreline' has no attribute {name!r}")
    from scoreline import client

    return getattr(client, name)


def __dir__() -> list[str]:
    """Return what editors and consoles may offer."""
    return [*__all__, "__version__"]
