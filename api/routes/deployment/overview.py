"""``GET /v1/overview``: the live workers, and what waits of the caller's own work.

Viewers ask every few seconds, so all viewers of a process share one look-up for each model.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from api.acceptance.acceptance import Door
from api.answers.error_responses import secured
from api.answers.presentation import json_response
from api.answers.schemas.server import Overview, OverviewWorker
from api.answers.shown import shown
from api.principal import WithReadScope
from api.reading import model_not_found
from api.routes.deployment.models import usable
from api.service import Service, ServiceOf
from jobs.catalogue import DEFAULT_MODEL
from jobs.queue.statistics import TenantWork
from jobs.tenancy.tenants import Tenant
from scoring.error_codes import ErrorCode
from settings.version import VERSION

router = APIRouter(tags=["models"])

_NOTHING = TenantWork(chunks=0, tokens=0.0, oldest_seconds=0.0)


@router.get("/v1/overview", response_model=Overview, responses=secured(ErrorCode.MODEL_NOT_FOUND))
async def overview(service: ServiceOf, principal: WithReadScope) -> Response:
    """The default model with its live workers, and how much of the caller's own work waits, for whichever model.

    A caller that may not name the default sees the first model that it may name. It costs little: all callers of a
    process share one look at each model a second, and fewer if the queue is long.
    """
    return json_response(await service.threads.sql_of(principal.tenant, _look, service, principal.policy))


def _look(service: Service, tenant: Tenant) -> dict[str, Any]:
    models, entries = service.reading.models, usable(service, tenant)
    if not entries:
        raise model_not_found(DEFAULT_MODEL)
    doors = [service.acceptance.doors.of_card(entry.card) for entry in entries]
    card, compatibility = doors[0].card, doors[0].compatibility.shared()
    own, estimates = zip(*(_waiting(door, tenant.name) for door in doors), strict=True)
    # Each model has workers of its own, or turns of them, so the slowest is the last.
    estimated = None if None in estimates else max(estimates)
    # Only artefacts of the default model are looked at.
    drifts = service.results.counts.look() if entries[0] is models.catalogue.default else []
    return {
        "object": "overview",
        "version": VERSION,
        "model": card.name,
        "max_model_len": card.context_length,
        "template": models.templates_of(entries[0]).default_name,
        "workers": [
            shown(OverviewWorker, worker, tokens_per_second=worker.tokens_per_second)
            for worker in compatibility.matching
        ],
        "waiting": {
            "chunks": sum(work.chunks for work in own),
            "tokens": round(sum(work.tokens for work in own)),
            "oldest_seconds": round(max(work.oldest_seconds for work in own), 3),
            "estimated_seconds": None if estimated is None else round(estimated, 3),
        },
        "warnings": [
            *compatibility.warnings,
            *(compatibility.differences if compatibility.mismatched else ()),
            *(warning for drift in drifts for warning in drift.warnings),
        ],
    }


def _waiting(door: Door, tenant: str) -> tuple[TenantWork, float | None]:
    """Return a tenant's work that waits for a model, and in how many seconds it is scored; None: nobody knows."""
    waiting, rate = door.admission.waiting_work(), door.compatibility.shared().tokens_per_second
    own = waiting.of_tenants.get(tenant, _NOTHING)
    return own, 0.0 if not own.chunks else waiting.tokens_ahead(tenant, 0) / rate if rate else None
