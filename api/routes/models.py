"""List the served model and its workers."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.presentation import json_response, show_model
from api.answers.schemas import ModelList
from api.principal import WithReadScope
from api.service import ServiceOf

router = APIRouter(tags=["models"])


@router.get("/v1/models", response_model=ModelList, responses=secured())
async def list_models(service: ServiceOf, _: WithReadScope) -> Response:
    """The served model. Without live workers it still takes jobs; they wait."""
    compatibility = await service.threads.sql(service.compatibility.current)
    return json_response({"object": "list", "data": [show_model(service.card, compatibility.matching)]})
