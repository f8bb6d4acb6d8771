"""The routes of calls: requests whose senders wait for the answer. They differ in their bodies and answers alone.

A ranking is a call whose documents are the items, in the wording of a template. A decision has a question in each item.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from api.answers.decisions.schemas import DecisionsBody, DecisionsResponse, SystemOneBody, SystemOneResponse
from api.answers.error_responses import secured
from api.answers.items.request_schemas import LikelihoodBody, ScoreBody
from api.answers.items.result_schemas import LikelihoodResponse, ScoreResponse
from api.answers.openapi import json_body
from api.answers.schemas.completion import CompletionBody, CompletionResponse
from api.answers.schemas.reranking import EitherRanking, RerankBody, RerankResponse, TextsBody
from api.principal import WithScoreScope
from api.requests.headers.idempotency import IdempotencyKey
from api.requests.headers.prefer import Handling, is_strict
from api.requests.reranking import RERANK, TEXTS_PATH
from api.requests.sender import Sender
from api.routes.score import CALL_ERRORS, EXAMPLE, QUESTION_ERRORS, answer_call
from api.service import ServiceOf
from public_api import paths

router = APIRouter()

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


_RANKING = """Rank documents by their relevance to a query.

The requests and answers are Cohere's and Jina's. How the model is asked is decided by a template. A document is cut
only if `max_tokens_per_doc` asks for it. A ranking that is out of time is given up. `/rerank` also takes the body
of Text Embeddings Inference, which has `texts`, and answers it with a list alone.
"""


async def call(
    request: Request,
    service: ServiceOf,
    principal: WithScoreScope,
    idempotency_key: IdempotencyKey = None,
    handling: Handling = None,
) -> Response:
    """Answer a call whose unknown fields are ignored, unless the client wants it otherwise."""
    sender = Sender(principal, idempotency_key, is_strict(request, handling))
    return await answer_call(request, service, sender, request.scope["route"].path)


async def call_of_known_fields(
    request: Request, service: ServiceOf, principal: WithScoreScope, idempotency_key: IdempotencyKey = None
) -> Response:
    """Answer a call whose unknown fields are refused, whatever the client wants."""
    return await answer_call(request, service, Sender(principal, idempotency_key), request.scope["route"].path)


def _add(
    name: str,
    path: str,
    bodies: Sequence[type[BaseModel]],
    answer: type[BaseModel],
    example: dict[str, Any],
    description: str,
    *,
    asks_questions: bool = False,
) -> None:
    router.add_api_route(
        path,
        call_of_known_fields if asks_questions else call,
        methods=["POST"],
        name=name,
        tags=["decisions" if asks_questions else "scoring"],
        description=cleandoc(description),
        response_model=answer,
        responses=secured(*CALL_ERRORS, *(QUESTION_ERRORS if asks_questions else ())),
        openapi_extra=json_body(*bodies, examples=[example]),
    )


_add(
    "score",
    paths.SCORE,
    [ScoreBody],
    ScoreResponse,
    EXAMPLE,
    """Score items and wait for it.

    A call that is out of time is answered with 504, and `Location` names its job, which goes on unless `on_timeout` is
    `cancel`. A client that goes away cancels its job, unless it sent an Idempotency-Key: then it may come back for it.
    The same holds for a server that stops before the end of the job: it answers with 503, to send the request again.
    """,
)
_add(
    "likelihood",
    paths.LIKELIHOOD,
    [LikelihoodBody],
    LikelihoodResponse,
    {"query": "The capital of France is", "items": [" Paris", " a city in the south"]},
    """Return how probable each item is behind the query, and wait for it.

    An item's log-probability is the sum of those of its own tokens. Everything else is as with `/v1/score`.
    """,
)
_add(
    "systemone",
    paths.SYSTEMONE,
    [SystemOneBody],
    SystemOneResponse,
    {"state": STATE, "questions": QUESTIONS},
    """Answer questions about a state, in the words of System One.

    The state is computed once for all questions. Everything else is as with `/v1/score`.
    """,
    asks_questions=True,
)
_add(
    "decisions",
    paths.DECISIONS,
    [DecisionsBody],
    DecisionsResponse,
    {"input": STATE, "questions": [{"type": "predicate", "instructions": "Is a refund requested?"}]},
    "Answer questions about an input, in the words of OpenAI. It is `/v1/systemone` with other names.",
    asks_questions=True,
)
_add(
    "complete",
    paths.COMPLETIONS,
    [CompletionBody],
    CompletionResponse,
    {"prompt": "The capital of France is Paris", "max_tokens": 0, "echo": True, "logprobs": 1},
    """Return the log-probabilities of the tokens of prompts, and the most probable next token.

    The requests and answers are OpenAI's, as far as evaluation harnesses need them: no text is generated. A completion
    that is out of time is given up.
    """,
)
for _path in RERANK:
    _add(
        "rerank",
        _path,
        [RerankBody, TextsBody] if _path == TEXTS_PATH else [RerankBody],
        EitherRanking if _path == TEXTS_PATH else RerankResponse,
        {
            "query": "how do I care for indoor plants?",
            "documents": ["The train to the coast leaves at nine.", "Water the fern once a week."],
            "top_n": 1,
        },
        _RANKING,
    )
