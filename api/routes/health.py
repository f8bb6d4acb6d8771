"""Is the process alive, and can it serve? Two questions, so that an outage of the database restarts nobody."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.errors import documented
from api.presentation import json_response
from api.schemas import Health
from api.service import ServiceOf
from scoring.errors import ErrorCode

router = APIRouter(tags=["health"])


@router.get("/livez", response_model=Health, responses=documented())
async def livez() -> Response:
    """Alive: the process answers. It looks at nothing else."""
    return json_response({"status": "ok"})


@router.get("/readyz", response_model=Health, responses=documented(ErrorCode.STORAGE_UNAVAILABLE))
async def readyz(service: ServiceOf) -> Response:
    """Ready: the database answers and has this version's schema."""
    await service.threads.sql(service.database.check)
    return json_response({"status": "ok"})
