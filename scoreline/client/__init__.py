"""The Python client of the HTTP interface: :class:`Client`, and :class:`AsyncClient` for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scoreline.client.batch_objects import BATCH_ENDED, Batch, File
from scoreline.client.batch_results import BatchResult
from scoreline.client.blocking import Client
from scoreline.client.connection import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE
from scoreline.client.decisions import Answer, Choice, Decision, Scale, YesNo
from scoreline.client.errors import (
    BatchCancelled,
    BatchEnded,
    BatchExpired,
    BatchFailed,
    Conflict,
    InternalError,
    InvalidRequest,
    JobCancelled,
    JobEnded,
    JobExpired,
    JobFailed,
    NotFound,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    RateLimited,
    RequestTooLarge,
    ScorelineError,
    TimedOut,
    Unauthorized,
    Unavailable,
    UnexpectedResponse,
    Unreachable,
)
from scoreline.client.evaluating import Evaluation
from scoreline.client.job_objects import ENDED, Delivery, DryRun, Job, JobFailure, JobStatus, PlannedItems
from scoreline.client.operations.events import (
    BatchEnd,
    BatchEvent,
    BatchProgress,
    JobEnd,
    JobEvent,
    JobProgress,
    JobScores,
)
from scoreline.client.options import LabelNormalization, LabelScoring, Priority
from scoreline.client.progress import MapProgress
from scoreline.client.results import (
    Artefact,
    ItemLikelihood,
    ItemScores,
    LikelihoodResult,
    Model,
    Provenance,
    RankedDocument,
    Ranking,
    ScoreResult,
    Template,
)
from scoreline.client.signatures import UntrustedWebhook, WebhookEvent, verify_webhook

if TYPE_CHECKING:
    from scoreline.client.asynchronous import AsyncClient

__all__ = [
    "BATCH_ENDED",
    "DEFAULT_URL",
    "ENDED",
    "KEY_VARIABLE",
    "URL_VARIABLE",
    "Answer",
    "Artefact",
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
    "Evaluation",
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
    """Load the asynchronous client when it is first used: importing asyncio takes longer than the rest."""
    if name != "AsyncClient":
        raise AttributeError(f"module 'scoreline.client' has no attribute {name!r}")
    from scoreline.client import asynchronous

    return asynchronous.AsyncClient
