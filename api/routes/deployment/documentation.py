"""``/docs``: the OpenAPI document for browsers.

This server has all that the page needs, so it works without internet.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from threading import Lock

import fastapi_offline
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

from api.answers.presentation import encode, json_response
from api.service import StoreOf

router = APIRouter(include_in_schema=False)

ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
"""The files that the page names. The package ``fastapi-offline`` brings them along."""

_FOLDER = Path(fastapi_offline.__file__).parent / "static"

_NOTHING_FROM_OUTSIDE = (
    "default-src 'none'; script-src 'self' {script}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_DAY = "public, max-age=86400"

_ENCODING = Lock()


@router.get("/openapi.json")
async def document(request: Request, store: StoreOf) -> Response:
    """The document, which is put together and encoded once, by the first request and in a thread.

    That takes a quarter of a second of the processor: too long for the event loop, and for each start of a process.
    """
    return json_response(request.app.state.document or await store.threads.text(_encoded_document, request.app))


def _encoded_document(app: FastAPI) -> bytes:
    with _ENCODING:
        if app.state.document is None:
            app.state.document = encode(app.openapi())
        encoded: bytes = app.state.document
        return encoded


@router.get("/docs")
async def documentation() -> Response:
    """The page."""
    bundle, style, icon = (f"/docs/{name}" for name in ASSETS)
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Scoreline",
        swagger_js_url=bundle,
        swagger_css_url=style,
        swagger_favicon_url=icon,
        # Otherwise the page would ask a server of Swagger to check the document.
        swagger_ui_parameters={"validatorUrl": None},
    )
    # The page has one script in its text, and no other one may run: the browser knows it by its hash.
    scripts = _INLINE_SCRIPT.findall(bytes(page.body))
    hashes = (base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    page.headers["Content-Security-Policy"] = _NOTHING_FROM_OUTSIDE.format(script=allowed)
    page.headers["X-Content-Type-Options"] = "nosniff"
    return page


@router.get("/docs/{name}")
async def asset(name: str) -> Response:
    """A script, a style sheet or a picture of the page."""
    if name not in ASSETS:
        raise HTTPException(404)
    return FileResponse(_FOLDER / name, headers={"Cache-Control": _DAY})
