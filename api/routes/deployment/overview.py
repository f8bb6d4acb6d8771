"""``GET /v1/overview``: the live workers, and what waits of the caller's own work.

Viewers ask every few seconds, so all viewers of a process share one look-up.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.presentation import json_response
from api.answers.schemas.server import Overview, OverviewWorker
from api.answers.shown import shown
from api.principal import WithReadScope
from api.service import Service, ServiceOf
from jobs.queue.statistics import TenantWork
from scoring.error_codes import ErrorCode
from settings.version import VERSION

router = APIRouter(tags=["models"])

_NOTHING = TenantWork(chunks=0, tokens=0.0, oldest_seconds=0.0)


@router.get("/v1/overview", response_model=Overview, responses=secured(ErrorCode.STORAGE_UNAVAILABLE))
async def overview(service: ServiceOf, principal: WithReadScope) -> Response:
    """The live workers, and how much of the caller's own work waits for them.

    It costs little: all callers of a process share one look at the database a second, and fewer if the queue is long.
    """
    return json_response(await service.threads.sql_of(principal.tenant, _look, service, principal.tenant))


def _look(service: Service, tenant: str) -> dict[str, Any]:
    models = service.reading.models
    door = service.acceptance.doors.default
    card, compatibility, waiting = door.card, door.compatibility.shared(), door.admission.waiting_work()
    own, rate = waiting.of_tenants.get(tenant, _NOTHING), compatibility.tokens_per_second
    estimated = 0.0 if not own.chunks else waiting.tokens_ahead(tenant, 0) / rate if rate else None
    return {
        "object": "overview",
        "version": VERSION,
        "model": card.name,
        "max_model_len": card.context_length,
        "template": models.templates_of(models.catalogue.default).default_name,
        "workers": [
            shown(OverviewWorker, worker, tokens_per_second=worker.tokens_per_second)
            for worker in compatibility.matching
        ],
        "waiting": {
            "chunks": own.chunks,
            "tokens": round(own.tokens),
            "oldest_seconds": round(own.oldest_seconds, 3),
            "estimated_seconds": None if estimated is None else round(estimated, 3),
        },
        "warnings": [
            *compatibility.warnings,
            *(compatibility.differences if compatibility.mismatched else ()),
            *(warning for drift in service.results.counts.look() for warning in drift.warnings),
        ],
    }
