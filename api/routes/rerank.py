"""``POST /v1/rerank``: rank documents by their relevance to a query, as clients of Cohere, Jina and TEI ask for it.

A ranking is a call like those of ``/v1/score``. Its documents are the items, in the wording of a template.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.openapi import json_body
from api.answers.reranking_schemas import EitherRanking, RerankBody, RerankResponse, TextsBody
from api.principal import WithScoreScope
from api.requests.idempotency import IdempotencyKey
from api.requests.prefer import Handling, is_strict
from api.requests.reranking import RERANK, TEXTS_PATH
from api.requests.sender import Sender
from api.routes.score import CALL_ERRORS, answer_call
from api.service import ServiceOf

router = APIRouter(tags=["scoring"])

EXAMPLE = {
    "query": "how do I care for indoor plants?",
    "documents": ["The train to the coast leaves at nine.", "Water the fern once a week."],
    "top_n": 1,
}


async def rerank(
    request: Request,
    service: ServiceOf,
    principal: WithScoreScope,
    idempotency_key: IdempotencyKey = None,
    handling: Handling = None,
) -> Response:
    """Rank documents by their relevance to a query.

    The requests and answers are Cohere's and Jina's. How the model is asked is decided by a template. A document is cut
    only if `max_tokens_per_doc` asks for it. A ranking that is out of time is given up. `/rerank` also takes the body
    of Text Embeddings Inference, which has `texts`, and answers it with a list alone.
    """
    sender = Sender(principal, idempotency_key, is_strict(request, handling))
    return await answer_call(request, service, sender, request.url.path)


for _path in RERANK:
    _takes_texts = _path == TEXTS_PATH
    router.add_api_route(
        _path,
        rerank,
        methods=["POST"],
        response_model=EitherRanking if _takes_texts else RerankResponse,
        responses=secured(*CALL_ERRORS),
        openapi_extra=json_body(*([RerankBody, TextsBody] if _takes_texts else [RerankBody]), examples=[EXAMPLE]),
    )
