"""Show the models that a caller may name, and their workers."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.presentation import json_response, show_model, show_models, with_adapter
from api.answers.schemas.server import Model, ModelList
from api.models.catalogue import Entry
from api.principal import WithReadScope
from api.reading import model_not_found
from api.requests.artefacts import artefacts_for
from api.service import Service, ServiceOf
from checkpoints.adapter_folder import SEPARATOR, AdapterFolder
from jobs.tenancy.tenants import Tenant
from judgement.folder import ArtefactFolder
from scoring.error_codes import ErrorCode

router = APIRouter(tags=["models"])


@router.get("/v1/models", response_model=ModelList, responses=secured())
async def list_models(service: ServiceOf, principal: WithReadScope) -> Response:
    """The models that the caller may name, each alone and with each of its adapters, the default first.

    Without live workers a model still takes jobs; they wait.
    """
    entries = usable(service, principal.policy)

    def listed() -> dict[str, Any]:
        shown = [one for entry in entries for one in _with_adapters(service, entry)]
        return show_models(shown, service.reading.models.catalogue.default.card.name)

    return json_response(await service.threads.sql_of(principal.tenant, listed))


@router.get("/v1/models/{model_id:path}", response_model=Model, responses=secured(ErrorCode.MODEL_NOT_FOUND))
async def retrieve_model(model_id: str, service: ServiceOf, principal: WithReadScope) -> Response:
    """A model by one of its names, or the default by `default`; with an adapter, by both names.

    An adapter of the default model is found by its name alone, too.
    """
    # Paths are compared as they were sent, and a name may hold a slash.
    name, models = unquote(model_id), service.reading.models
    entry = models.catalogue.find(name)
    adapter = None
    if entry is None:
        entry, adapter = models.catalogue.default, name
    elif name not in models.catalogue.by_name:
        adapter = name.partition(SEPARATOR)[2] or None
    if not principal.policy.may_use(entry.card.name) or (adapter is not None and adapter not in _adapters(entry)):
        raise model_not_found(name)
    found = entry
    return json_response(await service.threads.sql_of(principal.tenant, lambda: _with(service, found, adapter)))


def usable(service: Service, tenant: Tenant) -> list[Entry]:
    """Return the models that a tenant may name, the default first."""
    return [one for one in service.reading.models.catalogue.entries if tenant.may_use(one.card.name)]


def _with_adapters(service: Service, entry: Entry) -> list[dict[str, Any]]:
    return [_with(service, entry, adapter) for adapter in (None, *_adapters(entry))]


def _adapters(entry: Entry) -> list[str]:
    folder = entry.scoring.adapter_folder
    return [] if folder is None else AdapterFolder(folder).names()


def _with(service: Service, entry: Entry, adapter: str | None) -> dict[str, Any]:
    """Return a model. All callers of a process share one look at its workers a second. Blocks on SQL and on files."""
    workers = service.acceptance.doors.of_card(entry.card).compatibility.shared().matching
    model = show_model(entry.card, service.reading.models.templates_of(entry), entry.aliases, workers)
    folder = entry.scoring.calibrations
    return with_adapter(
        model, adapter, artefacts_for(None if folder is None else ArtefactFolder(folder), entry.card, adapter)
    )
