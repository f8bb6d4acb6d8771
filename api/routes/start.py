"""``GET /``: what this server is, and what it offers."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from api.answers.error_responses import documented
from api.answers.presentation import json_response
from api.answers.server_schemas import Start
from settings.version import VERSION

router = APIRouter(tags=["health"])


@router.get("/", response_model=Start, responses=documented())
async def start(request: Request) -> Response:
    """The name of the product, its version and its doors."""
    routes: list[APIRoute] = request.app.state.routes
    doors = [
        {"method": method, "path": route.path_format, "summary": _first_paragraph(route.description)}
        for route in routes
        if route.include_in_schema
        for method in sorted(route.methods or ())
    ]
    found = {"object": "service", "name": "scoreline", "version": VERSION}
    return json_response({**found, "documentation": "/docs", "openapi": "/openapi.json", "doors": doors})


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().partition("\n\n")[0].split())
