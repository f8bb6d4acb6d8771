"""``POST /v1/likelihood``: the log-probability of items behind a query. It is a call like those of ``/v1/score``."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.items.request_schemas import LikelihoodBody
from api.answers.items.result_schemas import LikelihoodResponse
from api.answers.openapi import json_body
from api.principal import WithScoreScope
from api.requests.idempotency import IdempotencyKey
from api.requests.kinds import LIKELIHOOD
from api.requests.prefer import Handling, is_strict
from api.requests.sender import Sender
from api.routes.score import CALL_ERRORS, answer_call
from api.service import ServiceOf

router = APIRouter(tags=["scoring"])

EXAMPLE = {"query": "The capital of France is", "items": [" Paris", " a city in the south"]}


@router.post(
    LIKELIHOOD.path,
    response_model=LikelihoodResponse,
    responses=secured(*CALL_ERRORS),
    openapi_extra=json_body(LikelihoodBody, examples=[EXAMPLE]),
)
async def likelihood(
    request: Request,
    service: ServiceOf,
    principal: WithScoreScope,
    idempotency_key: IdempotencyKey = None,
    handling: Handling = None,
) -> Response:
    """Return how probable each item is behind the query, and wait for it.

    An item's log-probability is the sum of those of its own tokens. Everything else is as with `/v1/score`.
    """
    sender = Sender(principal, idempotency_key, is_strict(request, handling))
    return await answer_call(request, service, sender, LIKELIHOOD.path)
