"""The parameter of routes that submit work: who sends the body, and what the headers ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from api.principal import WithScoreScope
from api.requests.idempotency import IdempotencyKey
from api.requests.prefer import Handling, is_strict
from api.requests.sender import Sender


async def _sender(
    request: Request, principal: WithScoreScope, idempotency_key: IdempotencyKey = None, handling: Handling = None
) -> Sender:
    return Sender(principal, idempotency_key, is_strict(request, handling))


SenderOf = Annotated[Sender, Depends(_sender)]
"""The type of a route's parameter that is the sender; callers without the scope to score get an error."""
