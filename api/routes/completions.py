"""``POST /v1/completions``: the scores of whole prompts, as evaluation harnesses ask for them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers.completion_schemas import CompletionBody, CompletionResponse
from api.answers.error_responses import secured
from api.answers.openapi import json_body
from api.principal import WithScoreScope
from api.requests.idempotency import IdempotencyKey
from api.requests.prefer import Handling, is_strict
from api.requests.sender import Sender
from api.routes.score import CALL_ERRORS, answer_call
from api.service import ServiceOf
from public_api import paths

router = APIRouter(tags=["scoring"])

EXAMPLE = {"prompt": "The capital of France is Paris", "max_tokens": 0, "echo": True, "logprobs": 1}


@router.post(
    paths.COMPLETIONS,
    response_model=CompletionResponse,
    responses=secured(*CALL_ERRORS),
    openapi_extra=json_body(CompletionBody, examples=[EXAMPLE]),
)
async def complete(
    request: Request,
    service: ServiceOf,
    principal: WithScoreScope,
    idempotency_key: IdempotencyKey = None,
    handling: Handling = None,
) -> Response:
    """Return the log-probabilities of the tokens of prompts, and the most probable next token.

    The requests and answers are OpenAI's, as far as evaluation harnesses need them: no text is generated. A completion
    that is out of time is given up.
    """
    sender = Sender(principal, idempotency_key, is_strict(request, handling))
    return await answer_call(request, service, sender, paths.COMPLETIONS)
