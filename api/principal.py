"""The parameters by which routes authenticate their caller, limit its rate and require a scope."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import Request, Security
from fastapi.security import HTTPBearer, SecurityScopes

from api.answers.error_responses import note
from api.budget import place_of
from api.callers.authentication import Principal, claimed_key_id, require_scope
from api.request_id import add_headers
from api.service import Callers, CallersOf
from jobs.tenancy.keys import Scope
from scoring.error_codes import RequestError

_BEARER = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    description="an API key. The server that `scoreline up` runs on a loopback address takes requests without one too",
)
"""Only for the OpenAPI document: :class:`api.callers.authentication.Authenticator` reads the header."""


async def find_principal(request: Request, callers: Callers, scopes: Iterable[str]) -> Principal:
    """Return the caller of a request, and count the request as its tenant's.

    Raises RequestError INVALID_API_KEY, INSUFFICIENT_SCOPE, RATE_LIMIT_EXCEEDED, TOO_MANY_OPEN_REQUESTS, OVERLOADED,
    and StorageUnavailable.
    """
    try:
        principal = await callers.authenticator.authenticate(request.headers)
    except RequestError:
        if (key_id := claimed_key_id(request.headers)) is not None:
            note(request.scope, key_id=key_id)
        raise
    note(request.scope, **principal.noted)
    result = await callers.rate_limits.count(principal.policy)
    add_headers(request.scope, result.headers)
    result.check()
    for scope in scopes:
        require_scope(principal, Scope(scope))
    place_of(request).belongs_to(principal.tenant)
    return principal


async def check_again(request: Request, callers: Callers) -> None:
    """Refuse a request that is about to be stored, if its key was revoked or its tenant suspended while its body came.

    Raises RequestError INVALID_API_KEY, INSUFFICIENT_SCOPE, OVERLOADED, and StorageUnavailable.
    """
    require_scope(await callers.authenticator.authenticate(request.headers), Scope.SCORE)


async def _principal(
    request: Request, callers: CallersOf, scopes: SecurityScopes, _: Annotated[object, Security(_BEARER)]
) -> Principal:
    return await find_principal(request, callers, scopes.scopes)


WithScoreScope = Annotated[Principal, Security(_principal, scopes=[Scope.SCORE.value])]
WithReadScope = Annotated[Principal, Security(_principal, scopes=[Scope.READ.value])]
WithWebhookScope = Annotated[Principal, Security(_principal, scopes=[Scope.WEBHOOKS.value])]
"""The types of a route's parameter that is the caller; callers without the scope get an error."""
