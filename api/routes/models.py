"""What is served, and by how many workers."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.errors import secured
from api.presentation import json_response, show_model
from api.principal import Reader
from api.schemas import ModelList
from api.service import ServiceOf

router = APIRouter(tags=["models"])


@router.get("/v1/models", response_model=ModelList, responses=secured())
async def list_models(service: ServiceOf, _: Reader) -> Response:
    """The served model. Without live workers it still takes jobs; they wait."""
    standing = await service.threads.sql(service.handshake.look)
    return json_response({"object": "list", "data": [show_model(service.card, standing.matching)]})
