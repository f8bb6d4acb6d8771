"""The parts of one API process, which are made when it starts and used by all routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.budget import Budget
from api.callers.admission import Admission
from api.callers.authentication import Authenticator
from api.callers.compatibility import CompatibilityCheck
from api.callers.rate_limiting import RateLimits
from api.metrics import Metrics
from api.reading import ReadingContext
from api.ringing import Ringer
from api.text_process.body_reader import BodyReader
from api.text_process.process import TextProcess
from api.threads import Threads
from api.waiting import Waiters
from checkpoints.card import ModelCard
from jobs.store.database import Database
from jobs.store.records import Accepted, Submission
from settings.api import ApiSettings
from settings.limits import LimitSettings


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
    metrics: Metrics
    budget: Budget
    threads: Threads
    waiters: Waiters
    ringer: Ringer
    secret_overlap_seconds: float  # how long the former webhook secret still signs after a rotation

    def on_accepted(self, submission: Submission, accepted: Accepted) -> None:
        """Ring the workers for a job that was committed, and count it unless it was accepted earlier."""
        self.ringer.ring(self.card.name)
        if not accepted.replayed:
            self.metrics.count_accepted(submission)


async def _service_of(request: Request) -> Service:
    # A coroutine, because FastAPI would call a plain function in a thread.
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(_service_of)]
"""The type of a route's parameter that is the process's service."""
