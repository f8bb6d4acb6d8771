"""The parts of one API process, which are made when it starts. A route takes those that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from api.acceptance.acceptance import Acceptance
from api.budget import Budget
from api.callers.authentication import Authenticator
from api.callers.rate_limiting import RateLimits
from api.events.streams import Streams
from api.metrics import Metrics
from api.probes import Probes
from api.reading import ReadingContext
from api.results import Results
from api.store import Store
from api.text_process.body_reader import BodyReader
from api.threads import Threads
from api.waiting.waiters import Waiters
from telemetry.tracing import Tracer

if TYPE_CHECKING:
    from judgement.receipts import ReceiptKeys


@dataclass(frozen=True, slots=True, eq=False)
class Callers:
    """What a process knows of its callers: who they are, and how often they may call."""

    authenticator: Authenticator
    rate_limits: RateLimits


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Service:
    """One API process."""

    reading: ReadingContext  # the settings, and the served model
    store: Store
    threads: Threads
    bodies: BodyReader
    callers: Callers
    acceptance: Acceptance
    waiters: Waiters
    results: Results
    streams: Streams
    metrics: Metrics
    probes: Probes
    budget: Budget  # what all open requests hold together
    tracer: Tracer | None  # None: there are no traces
    receipt_keys: ReceiptKeys | None  # None: no receipt is signed
    secret_overlap_seconds: float  # how long the former webhook secret still signs after a rotation


async def _service_of(request: Request) -> Service:
    # A coroutine, because FastAPI would call a plain function in a thread.
    service: Service = request.app.state.service
    return service


def _part(name: str) -> Any:
    async def find(request: Request) -> object:
        return getattr(request.app.state.service, name)

    return Depends(find)


ServiceOf = Annotated[Service, Depends(_service_of)]
"""The type of a route's parameter that is the process's service."""

StoreOf = Annotated[Store, _part("store")]
CallersOf = Annotated[Callers, _part("callers")]
StreamsOf = Annotated[Streams, _part("streams")]
ProbesOf = Annotated[Probes, _part("probes")]
"""The types of parameters that are parts of it."""
