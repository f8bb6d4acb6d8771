"""``GET /v1/jobs/{id}/items``: the query and the items of a job as text, so that people see what each score is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.answers.error_responses import secured
from api.answers.presentation import json_response
from api.answers.schemas.server import JobItems
from api.principal import WithReadScope
from api.requests.ids import checked_job_id
from api.routes.jobs import MAX_OFFSET
from api.service import Service, ServiceOf
from checkpoints.classification import Classes
from jobs.queue.inputs import JobInputs, read_inputs
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import TokenIds
from scoring.served_model import ServedModel
from scoring.tokenizing.tokenization import TextTokenizer

ITEMS_AT_ONCE = 100
SHOWN_TOKENS = 200
"""How many tokens of a text are shown, which bounds what an answer takes. The answer says how many there are."""

router = APIRouter(tags=["jobs"])

_Index = Annotated[int, Query(ge=0, le=MAX_OFFSET)]


@router.get(
    "/v1/jobs/{job_id}/items",
    response_model=JobItems,
    responses=secured(ErrorCode.INVALID_REQUEST, ErrorCode.JOB_NOT_FOUND),
)
async def items(
    job_id: str,
    service: ServiceOf,
    principal: WithReadScope,
    index: Annotated[
        list[_Index] | None,
        Query(max_length=ITEMS_AT_ONCE, description="the index of an item; for several, several times"),
    ] = None,
) -> Response:
    """Read the query, the labels and some items of a job, as far as they have up to 200 tokens; more are cut off.

    They are made from the stored tokens, so they have what a template adds. Texts are null if the job was accepted with
    another tokenizer than this server has.
    """
    inputs = await service.store.of(principal.tenant, read_inputs, checked_job_id(job_id), index or [])
    model = await _model_with(service, inputs.work_key)
    tokenizer, classes = (None, None) if model is None else (model.tokenizer, model.card.classes)
    return json_response(await service.threads.text_of(principal.tenant, _show, inputs, tokenizer, classes))


async def _model_with(service: Service, work_key: str) -> ServedModel | None:
    """Return the model by whose tokenizer a job was accepted; None if there is none, or it can't be loaded."""
    entry = service.reading.models.catalogue.by_key.get(work_key)
    if entry is None:
        return None
    try:
        return await service.bodies.loader.loaded(entry)
    except RequestError:
        return None


def _show(inputs: JobInputs, tokenizer: TextTokenizer | None, classes: Classes | None) -> dict[str, object]:
    labels = inputs.labels
    return {
        "object": "list",
        "query": _text(inputs.query, tokenizer),
        "labels": None if labels is None else [_label(tokens, tokenizer, classes) for tokens in labels],
        "data": [
            {"index": index, **_text(item.tokens, tokenizer, inputs.query[item.prefix_end :])}
            for index, item in inputs.items.items()
        ],
    }


def _label(tokens: Sequence[int], tokenizer: TextTokenizer | None, classes: Classes | None) -> dict[str, object]:
    if tokenizer is None:
        return {"ids": list(tokens), "text": None}
    if classes is not None:
        return {"ids": list(tokens), "text": classes.names[tokens[0]]}
    text = tokenizer.pieces(tokens)[0] if len(tokens) == 1 else tokenizer.decode(tokens)
    return {"ids": list(tokens), "text": text}


def _text(
    tokens: TokenIds, tokenizer: TextTokenizer | None, rest_of_query: TokenIds | None = None
) -> dict[str, object]:
    """Return a text. rest_of_query: what an item does not share of the query, and may repeat in other tokens."""
    text = None
    if tokenizer is not None:
        text = tokenizer.decode(tokens[:SHOWN_TOKENS].tolist())
        if rest_of_query is not None and len(rest_of_query) <= SHOWN_TOKENS:
            text = text.removeprefix(tokenizer.decode(rest_of_query.tolist()))
    return {"text": text, "tokens": len(tokens), "is_cut": len(tokens) > SHOWN_TOKENS}
