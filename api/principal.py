"""A route's parameter that says who is calling, and refuses who may not."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request, Security
from fastapi.security import HTTPBearer, SecurityScopes

from api.callers.authentication import Principal, require_scope
from api.request_id import add_headers
from api.service import ServiceOf
from jobs.tenancy.keys import Scope

_BEARER = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    description="an API key. The server that `scoreline up` runs on a loopback address takes requests without one too",
)
"""For the document: the header is read by :class:`api.callers.authentication.Authenticator`."""


async def _principal(
    request: Request, service: ServiceOf, scopes: SecurityScopes, _: Annotated[object, Security(_BEARER)]
) -> Principal:
    principal = await service.authenticator.authenticate(request.headers)
    verdict = await service.rates.take(principal.policy)
    add_headers(request.scope, verdict.headers)
    verdict.check()
    for scope in scopes.scopes:
        require_scope(principal, Scope(scope))
    return principal


Scorer = Annotated[Principal, Security(_principal, scopes=[Scope.SCORE.value])]
Reader = Annotated[Principal, Security(_principal, scopes=[Scope.READ.value])]
Teller = Annotated[Principal, Security(_principal, scopes=[Scope.WEBHOOKS.value])]
"""A route's parameter of such a type is who is calling, and whoever calls has that scope."""
