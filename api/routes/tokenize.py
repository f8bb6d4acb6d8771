"""Tokenize texts like a scoring request, so that clients can find the ids of labels and count tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.openapi import json_body
from api.answers.presentation import json_response
from api.answers.schemas.jobs import TokenizeBody, Tokens
from api.principal import WithScoreScope
from api.requests.bodies.receiving import received_body
from api.requests.headers.prefer import Handling, is_strict
from api.requests.sender import Sender
from api.requests.tokenizing import tokenize_text
from api.service import ServiceOf
from scoring.error_codes import ErrorCode

router = APIRouter(tags=["models"])


@router.post(
    "/v1/tokenize",
    response_model=Tokens,
    responses=secured(
        ErrorCode.INVALID_JSON,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_PARAMETER,
        ErrorCode.MODEL_NOT_FOUND,
        ErrorCode.REQUEST_TOO_LARGE,
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ),
    openapi_extra=json_body(TokenizeBody, examples=[{"text": " Paris"}]),
)
async def tokenize(
    request: Request, service: ServiceOf, principal: WithScoreScope, handling: Handling = None
) -> Response:
    """Tokenize a text.

    `count` says whether it is one token, which a label must be unless `label_scoring` is `sequence`.
    """
    async with received_body(request, service.reading.limits, service.threads) as data:
        sender = Sender(principal, is_strict=is_strict(request, handling))
        answer = await service.bodies.read(request, principal.tenant, tokenize_text, data, sender)
    return json_response(answer)
