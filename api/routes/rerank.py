"""``POST /v1/rerank``: rank documents by their relevance to a query, as clients of Cohere and of Jina ask for it.

A ranking is a call like those of ``/v1/score``. Its documents are the items, in the wording of a template.
"""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.openapi import json_body
from api.answers.reranking import encode_ranking
from api.answers.reranking_schemas import RerankBody, RerankResponse
from api.principal import WithScoreScope
from api.requests.body import received_body
from api.requests.idempotency import IdempotencyKey
from api.requests.prefer import Handling, is_strict
from api.requests.reranking import Rerank, read_rerank
from api.routes.score import CALL_ERRORS, answer_call
from api.service import Service, ServiceOf

router = APIRouter(tags=["scoring"])

PATHS = {"/v1/rerank": True, "/v2/rerank": False, "/rerank": True}
"""The paths of the route, and whether each returns documents unless told otherwise."""

SMALL_RESULTS = 100
"""A ranking with at most so many results, and without documents, is encoded in less time than a thread takes."""

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
    only if `max_tokens_per_doc` asks for it. A ranking that is out of time is given up.
    """
    path, strict = request.url.path, is_strict(request, handling)
    async with received_body(request, service.reading.limits) as data:
        ranking = await service.bodies.read(
            request, principal.tenant, read_rerank, data, principal, idempotency_key, path, PATHS[path], strict
        )
        del data
        if ranking.documents is not None:
            # The documents are as large as the body, so it counts in the budget as long as they are kept.
            return await _answer(request, service, ranking)
    return await _answer(request, service, ranking)


async def _answer(request: Request, service: Service, ranking: Rerank) -> Response:
    submission = ranking.call.submission
    encode = partial(
        encode_ranking, otherwise=submission.options.relevance, top_n=ranking.top_n, documents=ranking.documents
    )
    is_small = ranking.documents is None and submission.total_items <= SMALL_RESULTS
    return await answer_call(request, service, ranking.call, encode, is_small=is_small)


for _path in PATHS:
    router.add_api_route(
        _path,
        rerank,
        methods=["POST"],
        response_model=RerankResponse,
        responses=secured(*CALL_ERRORS),
        openapi_extra=json_body(RerankBody, EXAMPLE),
    )
