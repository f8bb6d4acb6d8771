"""``/page``: the files of the page that browsers get at ``/``.

The page is a few scripts that call the public interface, so it needs no route of its own. It is sent to anybody. All
data that it shows comes from the interface, with the key that its user has entered.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parents[2] / "page"
START = "start.html"
SERVED = frozenset(path.name for path in FOLDER.iterdir() if path.suffix in {".js", ".css", ".svg"}) | {START}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # The browser refuses every assignment of text to HTML, but for the templates that the library compiles.
        "require-trusted-types-for 'script'",
        "trusted-types lit-html",
    )
)
"""What the page may do: run and load the files of this server, and call its interface."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # A browser asks each time whether its copy still holds, so an upgrade takes effect at once.
    "Cache-Control": "no-cache",
}

_FILES = StaticFiles(directory=FOLDER)


class _Compressed(Response):
    """A response that is compressed for clients that take it so: all files together are a third as long then."""

    def __init__(self, response: Response) -> None:
        self.status_code, self.background, self.raw_headers = response.status_code, None, response.raw_headers
        self._app = GZipMiddleware(response)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def page_file(request: Request, name: str) -> Response:
    """Return a file of the page, or a 304 if the browser has it. Raises HTTPException if there is none."""
    if name not in SERVED:
        raise HTTPException(404)
    response = await _FILES.get_response(name, request.scope)
    response.headers.update(HEADERS)
    return _Compressed(response)


@router.get("/page/{name}")
async def asset(request: Request, name: str) -> Response:
    """A script, a style sheet or a picture of the page."""
    return await page_file(request, name)
