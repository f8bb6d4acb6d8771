"""Show the served model and its workers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.presentation import json_response, show_model
from api.answers.server_schemas import Model, ModelList
from api.principal import WithReadScope
from api.reading import model_not_found
from api.service import Service, ServiceOf
from scoring.error_codes import ErrorCode

router = APIRouter(tags=["models"])


@router.get("/v1/models", response_model=ModelList, responses=secured())
async def list_models(service: ServiceOf, _: WithReadScope) -> Response:
    """The served model. Without live workers it still takes jobs; they wait."""
    return json_response({"object": "list", "data": [await _served(service)]})


@router.get("/v1/models/{model_id:path}", response_model=Model, responses=secured(ErrorCode.MODEL_NOT_FOUND))
async def retrieve_model(model_id: str, service: ServiceOf, _: WithReadScope) -> Response:
    """The served model by its name, or by `default`."""
    if not service.reading.serves(model_id):
        raise model_not_found(model_id)
    return json_response(await _served(service))


async def _served(service: Service) -> dict[str, Any]:
    compatibility = await service.threads.sql(service.compatibility.current)
    return show_model(service.card, service.reading.templates, compatibility.matching)
