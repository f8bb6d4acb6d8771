"""What is served, and by how many workers."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.errors import documented
from api.presentation import json_response, show_model
from api.schemas import ModelList
from api.service import ServiceOf
from scoring.errors import ErrorCode

router = APIRouter(tags=["models"])


@router.get("/v1/models", response_model=ModelList, responses=documented(ErrorCode.STORAGE_UNAVAILABLE))
async def list_models(service: ServiceOf) -> Response:
    """The served model. Without live workers it still takes jobs; they wait."""
    standing = await service.threads.sql(service.handshake.look)
    return json_response({"object": "list", "data": [show_model(service.card, standing.matching)]})
