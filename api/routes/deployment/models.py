"""Show the served model and its workers."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.presentation import json_response, show_model, show_models
from api.answers.server_schemas import Model, ModelList
from api.callers.authentication import Principal
from api.principal import WithReadScope
from api.reading import model_not_found
from api.service import Service, ServiceOf
from scoring.error_codes import ErrorCode

router = APIRouter(tags=["models"])


@router.get("/v1/models", response_model=ModelList, responses=secured())
async def list_models(service: ServiceOf, principal: WithReadScope) -> Response:
    """The served model. Without live workers it still takes jobs; they wait."""
    return json_response(show_models(await _model_and_workers(service, principal), service.reading.names))


@router.get("/v1/models/{model_id:path}", response_model=Model, responses=secured(ErrorCode.MODEL_NOT_FOUND))
async def retrieve_model(model_id: str, service: ServiceOf, principal: WithReadScope) -> Response:
    """The served model by its name, or by `default`."""
    model_id = unquote(model_id)  # Paths are compared as they were sent, and a name may hold a slash.
    if not service.reading.serves(model_id):
        raise model_not_found(model_id)
    return json_response(await _model_and_workers(service, principal))


async def _model_and_workers(service: Service, principal: Principal) -> dict[str, Any]:
    """Return the served model. All callers of a process share one look at its workers a second."""
    compatibility = await service.threads.sql_of(principal.tenant, service.acceptance.compatibility.shared)
    return show_model(service.reading.card, service.reading.templates, compatibility.matching)
