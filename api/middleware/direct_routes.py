"""A direct way to the busiest routes, past the framework.

For each request, FastAPI looks for the route, and then for a value of each parameter of the route's function. For a
call of ``/v1/score`` that took a quarter of its processor time. But the parameters of a function never change, so for
some routes it is decided once where their values come from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from inspect import signature
from typing import Any, get_args, get_type_hints

from fastapi import Request
from fastapi.params import Security
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.answers.error_responses import answer_to_failure
from api.principal import find_principal
from jobs.store.database import StorageUnavailable
from scoring.error_codes import RequestError

GIVEN = {"request", "service", "principal"}
"""The parameters of a function that can be called directly. It may have others, if they are headers with a default."""


@dataclass(frozen=True, slots=True)
class _Direct:
    """A route whose function can be called directly."""

    route: APIRoute
    function: Callable[..., Awaitable[Response]]
    scopes: tuple[str, ...]  # that the caller must have
    headers: frozenset[bytes]  # that have a parameter of their own, in small letters


class DirectRoutes:
    """ASGI middleware: calls the functions of some routes itself, and passes all other requests on to the framework.

    It also passes on a request with a header for which the function has a parameter, such as ``Idempotency-Key``: the
    framework knows how to check it.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[APIRoute]) -> None:
        self.app = app
        self._direct = {
            (method, route.path): direct
            for route in routes
            if (direct := _direct(route)) is not None
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        direct = self._direct.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if direct is None or any(name in direct.headers for name, _ in scope["headers"]):
            await self.app(scope, receive, send)
            return
        scope["route"] = direct.route  # as the framework does: the metrics name it
        request = Request(scope, receive, send)
        service = request.app.state.service
        try:
            principal = await find_principal(request, service.callers, direct.scopes)
            response = await direct.function(request=request, service=service, principal=principal)
        except (RequestError, StorageUnavailable) as error:
            response = answer_to_failure(request, error)
        await response(scope, receive, send)


def _direct(route: APIRoute) -> _Direct | None:
    """Return how to call the function of a route, or None if only the framework knows how."""
    dependant = route.dependant
    headers = {field.alias.lower() for field in dependant.header_params}
    others = (dependant.path_params, dependant.query_params, dependant.cookie_params, dependant.body_params)
    parameters = signature(route.endpoint).parameters.keys() - {field.name for field in dependant.header_params}
    if parameters != GIVEN or route.dependencies or any(others):
        return None
    if any(field.field_info.is_required() for field in dependant.header_params):
        return None
    hints: dict[str, Any] = get_type_hints(route.endpoint, include_extras=True)  # which takes long
    (security,) = [one for one in get_args(hints["principal"]) if isinstance(one, Security)]
    encoded = frozenset(name.encode() for name in headers)
    return _Direct(route, route.endpoint, tuple(security.scopes or ()), encoded)
