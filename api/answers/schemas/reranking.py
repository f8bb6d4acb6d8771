"""The schemas of rankings in the OpenAPI document: what clients of Cohere, of Jina and of TEI send and read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, RootModel

from api.answers.items.request_schemas import OriginFields
from api.answers.items.result_schemas import Shape, WithOrigin


class RerankDocument(BaseModel):
    """A document with a text. Other fields are ignored."""

    text: str


class RerankBody(OriginFields):
    """The body of `POST /v1/rerank`. Unknown fields are ignored with a warning."""

    query: str = Field(min_length=1)
    documents: list[str | RerankDocument] = Field(description="texts, or objects with a `text`")
    model: str | None = Field(None, description="the model's name; default, and `default`: the one this server serves")
    top_n: Annotated[int, Field(ge=1)] | None = Field(None, description="results to return; default: all")
    return_documents: bool | None = Field(
        None, description="return the documents with the results; default: true, but false on `/v2/rerank`"
    )
    instruction: str | None = Field(
        None, description="what makes a document relevant, if the template has a place for it"
    )
    max_tokens_per_doc: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="cut documents behind so many tokens; `warnings` says how many were. Default, and 0: none is cut",
    )
    template: str | None = Field(None, description="the name of a template of the server; default: the deployment's")
    calibration: str | None = Field(None, description="an artefact of `scoreline calibrate`, as for `/v1/score`")
    threshold: str | None = Field(None, description="an artefact of `scoreline threshold`, as for `/v1/score`")
    timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds to wait; a ranking that is out of time is given up"
    )


class TextsBody(BaseModel):
    """The body of `POST /rerank` as clients of Text Embeddings Inference (TEI) send it. It is told by its `texts`."""

    query: str = Field(min_length=1)
    texts: list[str]
    raw_scores: bool | None = Field(
        False, description="scores are logits: where the relevance is a probability p, they are log(p / (1 - p))"
    )
    return_text: bool | None = Field(False, description="return the texts, too")
    truncate: bool | None = Field(False, description="texts are cut at their ends, so that each fits behind the query")
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = Field(
        None, description="means nothing without `truncate`, and with it only `Right` is accepted"
    )
    model: str | None = Field(None, description="as in the other body, like all further fields")
    top_n: Annotated[int, Field(ge=1)] | None = None
    instruction: str | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=0)] | None = None
    template: str | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None


class RankedText(Shape):
    """A text by its relevance, highest first, ties by index."""

    index: int = Field(description="the text's place in the request")
    score: float = Field(description="its relevance by the template's formula; with `raw_scores` the logit")
    text: str | None = Field(None, description="with `return_text`")


class RankedDocument(Shape):
    text: str


class RankedResult(Shape):
    index: int = Field(description="the document's place in the request")
    relevance_score: float = Field(
        description="by the template's formula: by most templates a share or a probability, in [0, 1]; by "
        "`mxbai-rerank-v2` a difference of logits, which may be below 0 and above 1"
    )
    score: float = Field(description="the same, by the name that some clients read")
    label_mass: float | None = Field(
        None,
        description="the share of the probability that the template's labels have together; absent where the model has "
        "classes",
    )
    calibrated: list[float] | None = Field(
        None, description="the calibrated probability of each label of the template, if a calibration is named"
    )
    action: str | None = Field(None, description="a label or `abstain`, if a threshold is named")
    label_set: list[str] | None = Field(None, description="the labels that may be true, if the threshold has sets")
    document: RankedDocument | None = Field(None, description="as it was sent, if asked for")


class RerankUsage(Shape):
    prompt_tokens: int = Field(description="the lengths of all sequences, summed")
    total_tokens: int


class BilledUnits(Shape):
    search_units: Literal[1] = 1


class RerankMeta(Shape):
    billed_units: BilledUnits


class RerankResponse(WithOrigin):
    """Documents by their relevance, highest first, ties by index."""

    id: str = Field(description="the id of the job that computed them")
    object: Literal["list"] = "list"
    model: str
    results: list[RankedResult]
    usage: RerankUsage
    meta: RerankMeta
    warnings: list[str]


class EitherRanking(RootModel[RerankResponse | list[RankedText]]):
    """The answer to a body with `documents`, or the list alone for one with `texts`."""
