"""Tokenise texts like a scoring request, so that clients can find the ids of labels and count tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.openapi import json_body
from api.answers.presentation import encode, json_response
from api.answers.schemas import TokenizeBody, Tokens
from api.principal import WithScoreScope
from api.reading import ReadingContext
from api.requests.body import read_body
from api.requests.submission import parse_object
from api.service import ServiceOf
from scoring.error_codes import ErrorCode, RequestError
from scoring.limits import Limit, check_characters

router = APIRouter(tags=["models"])


@router.post(
    "/v1/tokenize",
    response_model=Tokens,
    responses=secured(
        ErrorCode.INVALID_JSON,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.MODEL_NOT_FOUND,
        ErrorCode.REQUEST_TOO_LARGE,
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ),
    openapi_extra=json_body(TokenizeBody, {"text": " Paris"}),
)
async def tokenize(request: Request, service: ServiceOf, _: WithScoreScope) -> Response:
    """Tokenise a text. A label must be one token: `count` says whether it is."""
    data = await read_body(request, service.limits.max_body_bytes)
    return json_response(await service.threads.text(_tokenize, service.reading, data))


def _tokenize(reading: ReadingContext, data: bytes) -> bytes:
    body = parse_object(data)
    reading.check_model(body.get("model"))
    text = body.get("text")
    if not isinstance(text, str):
        raise RequestError(ErrorCode.INVALID_REQUEST, "text must be a string", param="text")
    most = reading.limits.max_tokenize_characters
    check_characters(text, Limit("max_tokenize_characters", most), "text")
    add_special_tokens = body.get("add_special_tokens")
    if not isinstance(add_special_tokens, bool | None):
        raise RequestError(
            ErrorCode.INVALID_REQUEST, "add_special_tokens must be true or false", param="add_special_tokens"
        )
    ids = reading.tokenizer.encode(text, add_special_tokens=bool(add_special_tokens))
    return encode(
        {
            "model": reading.card.name,
            "tokens": ids,
            "pieces": reading.tokenizer.pieces(ids),
            "count": len(ids),
            "max_model_len": reading.card.context_length,
        }
    )
