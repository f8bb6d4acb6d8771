"""``GET /``: what this server is, and what it offers. Browsers get a page instead, which :mod:`.page` serves."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from api.answers.error_responses import documented
from api.answers.presentation import json_response
from api.answers.schemas.server import Start
from api.requests.headers.accept import prefers
from api.routes.deployment.page import START, page_file
from settings.version import VERSION

router = APIRouter(tags=["health"])

_HTML = {"text/html": {"schema": {"type": "string"}, "example": "<!doctype html>"}}


@router.get(
    "/",
    response_model=Start,
    responses={
        200: {"description": "the doors; or, with `Accept: text/html`, a page for people", "content": _HTML},
        **documented(),
    },
)
async def start(request: Request) -> Response:
    """The name of the product, its version and its doors. Browsers get a page for people."""
    # A cache may not give a program what it has kept for a browser.
    vary = {"Vary": "Accept"}
    if prefers(request, "text/html", "application/json"):
        response = await page_file(request, START)
        response.headers.update(vary)
        return response
    routes: list[APIRoute] = request.app.state.routes
    doors = [
        {"method": method, "path": route.path_format, "summary": _first_paragraph(route.description)}
        for route in routes
        if route.include_in_schema
        for method in sorted(route.methods or ())
    ]
    found = {"object": "service", "name": "scoreline", "version": VERSION}
    answer = {**found, "documentation": "/docs", "openapi": "/openapi.json", "doors": doors}
    return json_response(answer, headers=vary)


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().partition("\n\n")[0].split())
