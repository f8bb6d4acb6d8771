"""``POST /v1/systemone`` and ``POST /v1/decisions``: answers to questions. They are calls as ``/v1/score`` is."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers.decisions.schemas import DecisionsBody, DecisionsResponse, SystemOneBody, SystemOneResponse
from api.answers.error_responses import secured
from api.answers.openapi import json_body
from api.principal import WithScoreScope
from api.requests.idempotency import IdempotencyKey
from api.requests.kinds import DECISIONS, SYSTEMONE
from api.requests.sender import Sender
from api.routes.score import CALL_ERRORS, QUESTION_ERRORS, answer_call
from api.service import ServiceOf

router = APIRouter(tags=["decisions"])

DECISION_ERRORS = (*CALL_ERRORS, *QUESTION_ERRORS)

STATE = "I was charged twice for my order and want a refund."
QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Is a refund requested?"},
    "team": {
        "type": "choice",
        "instructions": "Who should answer?",
        "criteria": {"billing": "money", "delivery": "parcels"},
    },
    "urgency": {"type": "score", "instructions": "How urgent is it?", "criteria": ["can wait", "this week", "today"]},
}


@router.post(
    SYSTEMONE.path,
    response_model=SystemOneResponse,
    responses=secured(*DECISION_ERRORS),
    openapi_extra=json_body(SystemOneBody, examples=[{"state": STATE, "questions": QUESTIONS}]),
)
async def systemone(
    request: Request, service: ServiceOf, principal: WithScoreScope, idempotency_key: IdempotencyKey = None
) -> Response:
    """Answer questions about a state, in the words of System One.

    The state is computed once for all questions. Everything else is as with `/v1/score`.
    """
    return await answer_call(request, service, Sender(principal, idempotency_key), SYSTEMONE.path)


@router.post(
    DECISIONS.path,
    response_model=DecisionsResponse,
    responses=secured(*DECISION_ERRORS),
    openapi_extra=json_body(
        DecisionsBody,
        examples=[{"input": STATE, "questions": [{"type": "predicate", "instructions": "Is a refund requested?"}]}],
    ),
)
async def decisions(
    request: Request, service: ServiceOf, principal: WithScoreScope, idempotency_key: IdempotencyKey = None
) -> Response:
    """Answer questions about an input, in the words of OpenAI. It is `/v1/systemone` with other names."""
    return await answer_call(request, service, Sender(principal, idempotency_key), DECISIONS.path)
