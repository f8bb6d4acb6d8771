"""The parts of one API process, which are made when it starts and used by all routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from api.acceptance.accepting import Acceptor
from api.acceptance.ringing import Ringer
from api.budget import Budget
from api.caching import CachedLookup
from api.callers.admission import Admission
from api.callers.authentication import Authenticator
from api.callers.compatibility import CompatibilityCheck
from api.callers.rate_limiting import RateLimits
from api.callers.storage_quota import StorageQuota
from api.events.batch_progress import BatchState
from api.events.job_progress import JobState, ScorePart
from api.metrics import Metrics
from api.provenances import KnownProvenances
from api.reading import ReadingContext
from api.rounds import Rounds, SharedCall
from api.siblings import Siblings
from api.text_process.body_reader import BodyReader
from api.text_process.process import TextProcess
from api.threads import Threads
from api.waiting.following import Following
from api.waiting.waiters import Waiters
from checkpoints.card import ModelCard
from jobs.queue.read import Progress
from jobs.store.database import Database
from jobs.store.records import JobResult
from settings.api import ApiSettings
from settings.limits import LimitSettings
from telemetry.tracing import Tracer


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Service:
    """One API process."""

    api: ApiSettings
    limits: LimitSettings
    database: Database
    card: ModelCard  # of the served model
    reading: ReadingContext
    bodies: BodyReader
    text_process: TextProcess  # which reads long bodies
    compatibility: CompatibilityCheck
    authenticator: Authenticator
    rate_limits: RateLimits
    admission: Admission
    storage_quota: StorageQuota
    acceptor: Acceptor
    metrics: Metrics
    budget: Budget  # what all open requests hold together
    metrics_text: SharedCall[bytes]  # what /metrics answers
    readiness: SharedCall[dict[str, Any]]  # what /readyz answers
    threads: Threads
    provenances: KnownProvenances
    waiters: Waiters
    results: Rounds[str, JobResult]  # reads the results of jobs
    followed_jobs: Following[JobState]
    followed_batches: Following[BatchState]
    score_parts: CachedLookup[tuple[Progress, int], ScorePart]  # from an item on, for streams
    ringer: Ringer
    siblings: Siblings | None  # None: this process serves alone
    tracer: Tracer | None  # None: there are no traces
    secret_overlap_seconds: float  # how long the former webhook secret still signs after a rotation


async def _service_of(request: Request) -> Service:
    # A coroutine, because FastAPI would call a plain function in a thread.
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(_service_of)]
"""The type of a route's parameter that is the process's service."""
