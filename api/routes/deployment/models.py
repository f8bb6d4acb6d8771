"""Show the served model and its workers."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from anyio.to_thread import run_sync
from fastapi import APIRouter
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.presentation import json_response, show_model, show_models, with_adapter
from api.answers.server_schemas import Model, ModelList
from api.callers.authentication import Principal
from api.principal import WithReadScope
from api.reading import ReadingContext
from api.requests.artefacts import artefacts_for
from api.service import Service, ServiceOf
from scoring.error_codes import ErrorCode

router = APIRouter(tags=["models"])


@router.get("/v1/models", response_model=ModelList, responses=secured())
async def list_models(service: ServiceOf, principal: WithReadScope) -> Response:
    """The served model, alone and with each adapter. Without live workers it still takes jobs; they wait."""
    model = await _model_and_workers(service, principal)

    def listed() -> dict[str, Any]:
        return show_models([_with(model, service.reading, one) for one in (None, *service.reading.adapter_names())])

    return json_response(await run_sync(listed))


@router.get("/v1/models/{model_id:path}", response_model=Model, responses=secured(ErrorCode.MODEL_NOT_FOUND))
async def retrieve_model(model_id: str, service: ServiceOf, principal: WithReadScope) -> Response:
    """The served model by its name, or by `default`; with an adapter, by both names or by that of the adapter."""
    # Paths are compared as they were sent, and a name may hold a slash.
    adapter = service.reading.adapter_of(unquote(model_id))
    model = await _model_and_workers(service, principal)
    return json_response(await run_sync(_with, model, service.reading, adapter))


def _with(model: dict[str, Any], reading: ReadingContext, adapter: str | None) -> dict[str, Any]:
    return with_adapter(model, adapter, artefacts_for(reading, adapter))


async def _model_and_workers(service: Service, principal: Principal) -> dict[str, Any]:
    """Return the served model. All callers of a process share one look at its workers a second."""
    compatibility = await service.threads.sql_of(principal.tenant, service.acceptance.compatibility.shared)
    return show_model(service.reading.card, service.reading.templates, compatibility.matching)
