"""The schemas of what calls and jobs ask for in the OpenAPI document: scores of labels, or likelihoods."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from scoring.request import MOST_BASELINE

TokenId = Annotated[int, Field(ge=0)]
LabelText = Annotated[str, Field(min_length=1)]

_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
ONE_KIND_OF_INPUT: dict[str, Any] = {
    "anyOf": [
        {"properties": {"query": {"type": "string"}, "items": {"anyOf": [{"type": "string"}, _TEXTS]}}},
        {"properties": {"query": _IDS, "items": {"anyOf": [_IDS, {"type": "array", "items": _IDS}]}}},
    ]
}
_ONE_KIND_OF_LABELS: dict[str, Any] = {
    "anyOf": [
        {
            "required": ["label_token_ids"],
            "properties": {
                "label_token_ids": {"anyOf": [_IDS, {"type": "array", "items": _IDS}]},
                "labels": {"type": "null"},
            },
        },
        {
            "required": ["labels"],
            "properties": {
                "labels": {"anyOf": [_TEXTS, {"type": "array", "items": _TEXTS}]},
                "label_token_ids": {"type": "null"},
            },
        },
        {
            "required": ["label_token_sequences", "label_scoring"],
            "properties": {
                "label_token_sequences": {"type": "array", "items": _IDS},
                "label_scoring": {"const": "sequence"},
                "labels": {"type": "null"},
                "label_token_ids": {"type": "null"},
            },
        },
        {"required": ["template"], "properties": {"template": {"type": "string"}}},
    ]
}


class OriginFields(BaseModel):
    """Whether an answer says how it was made."""

    return_provenance: bool | None = Field(
        False, description="also return what computed the numbers: what is needed to get the same bits again"
    )
    return_receipt: bool | None = Field(
        False,
        description="also return a signed statement of request, answer and provenance, if the server has a key for it; "
        "not with JSON lines, nor for a job that is too long to be read with its result",
    )


class ScoreFields(OriginFields):
    """What is scored: P(label | query + item) for every item and label. Unknown fields are ignored with a warning."""

    model_config = ConfigDict(json_schema_extra={"allOf": [ONE_KIND_OF_INPUT, _ONE_KIND_OF_LABELS]})

    query: Annotated[str, Field(min_length=1)] | Annotated[list[TokenId], Field(min_length=1)] = Field(
        description="the shared context: text, or token ids"
    )
    items: list[str] | list[list[TokenId]] | str | list[TokenId] = Field(
        description="what is appended to the query, one sequence each: texts with a text query, lists of token ids "
        "with a query of token ids; a single text or one flat list of ids is one item; an item may be empty"
    )
    baseline: (
        Annotated[list[str], Field(min_length=1, max_length=MOST_BASELINE)]
        | Annotated[list[list[TokenId]], Field(min_length=1, max_length=MOST_BASELINE)]
        | None
    ) = Field(
        None,
        description="items that say nothing, such as an empty text and `N/A`: the answer has `adjusted` probabilities, "
        "too, without the share of each label that these get. They are scored as further items behind the others. In "
        "one JSON body, with one list of labels, and for jobs whose result can be read at once",
    )
    label_token_ids: (
        Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1)]
        | None
    ) = Field(
        None,
        description="candidate next tokens, one id a label; this or `labels`, not both. A list of lists has labels for "
        "each item, in their order, and each row of the answer is as long as its list",
    )
    labels: (
        Annotated[list[LabelText], Field(min_length=1)]
        | Annotated[list[Annotated[list[LabelText], Field(min_length=1)]], Field(min_length=1)]
        | None
    ) = Field(
        None,
        description="candidate next tokens as texts, each of which must encode to exactly one token unless "
        "`label_scoring` is `sequence`. A list of lists has labels for each item, as `label_token_ids` may",
    )
    label_scoring: Literal["token", "sequence"] | None = Field(
        "token",
        description="`token`: a label is one token. `sequence`: it has any number of tokens, and its "
        "log-probability is the sum of theirs, each after the query, the item and the tokens before it",
    )
    label_token_sequences: (
        Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1)] | None
    ) = Field(None, description="labels of any number of tokens, a list of ids a label; only with `sequence`")
    label_normalization: Literal["none", "tokens", "bytes"] | None = Field(
        "none",
        description="what the log-probability of a label is divided by, with `sequence`: nothing, the number of its "
        "tokens, or that of its bytes in UTF-8, which needs `labels`. Scores are of the quotient",
    )
    query_template: str | None = Field(
        None,
        description="the text that the query becomes: `{query}` stands for it, `{instruction}` for the instruction. "
        "Only for texts. What clients write in place of these is text, also where it has braces or spells a special "
        "token",
    )
    item_template: str | None = Field(None, description="the same for each item, for which `{item}` stands")
    template: str | None = Field(
        None,
        description="the name of a template of the server, instead of these two; it has labels of its own, too; "
        "`name@digest`: it is refused if its digest is another one",
    )
    instruction: str | None = Field(None, description="what the template says the task is, if it has a place for it")
    model: str | None = Field(None, description="the model's name; default, and `default`: the one this server serves")
    apply_softmax: bool | None = Field(
        False, description="false: scores are probabilities over the whole vocabulary; true: each row sums to 1"
    )
    temperature: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        1.0, description="divides the logits before `apply_softmax`; other than 1 only with `apply_softmax`"
    )
    calibration: str | None = Field(
        None,
        description="an artefact of `scoreline calibrate` that the server has: the answer has `calibrated` "
        "probabilities, too. It is refused if it was made for another model, prompt or list of labels",
    )
    threshold: str | None = Field(
        None,
        description="an artefact of `scoreline threshold` that the server has: the answer has an `action` for each "
        "item, too. It has its calibration in it",
    )
    item_first: bool | None = Field(False, description="score item + query instead of query + item")
    return_logprobs: bool | None = Field(False, description="also return log-probabilities over the whole vocabulary")
    return_logits: bool | None = Field(False, description="also return raw logits")


class CallFields(BaseModel):
    """How long the caller waits."""

    timeout: Annotated[float, Field(gt=0)] | None = Field(None, description="seconds to wait for the scores")
    on_timeout: Literal["continue", "cancel"] | None = Field(
        None, description="what becomes of the job when the time is up; default: it goes on"
    )


class ScoreBody(ScoreFields, CallFields):
    """The body of `POST /v1/score`."""


Event = Literal["job.succeeded", "job.failed", "job.cancelled", "job.expired"]
BatchEvent = Literal["batch.completed", "batch.failed", "batch.cancelled", "batch.expired"]


class WebhookBody(BaseModel):
    """Where to be told of a job's end: a signed POST, sent again until it is answered with 2xx."""

    url: str = Field(description="https, at a public address")
    events: Annotated[list[Event], Field(min_length=1)] | None = Field(
        None, description="which ends to be told of; default: all"
    )


class JobFields(BaseModel):
    """What becomes of a job."""

    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = Field(
        None, description="at most 16 strings of up to 512 characters, under names of up to 64; returned as they are"
    )
    priority: Literal["interactive", "normal", "bulk"] | None = Field(None, description="default: normal")
    expires_in: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds after which what is not scored yet is given up"
    )
    webhook: WebhookBody | None = Field(None, description="where to be told of the job's end; default: nowhere")
    dry_run: bool | None = Field(
        False, description="only say what the job would take: nothing is stored or scored. Not with JSON lines"
    )


class JobBody(ScoreFields, JobFields):
    """The body of `POST /v1/jobs`."""

    kind: Literal["score"] | None = Field("score", description="what is wanted of the items: their scores")


class LikelihoodFields(OriginFields):
    """What is scored: the probability of every item's own tokens behind the query. Unknown fields are ignored with a
    warning.
    """

    model_config = ConfigDict(json_schema_extra={"allOf": [ONE_KIND_OF_INPUT]})

    query: str | list[TokenId] = Field(
        description="what stands before every item: text, or token ids. It may be empty where the tokenizer itself "
        "adds a beginning token"
    )
    items: list[str] | list[list[TokenId]] | str | list[TokenId] = Field(
        description="texts with a text query, lists of token ids with a query of token ids; a single text or one flat "
        "list of ids is one item; an empty item has the log-probability 0"
    )
    model: str | None = Field(None, description="the model's name; default, and `default`: the one this server serves")
    return_token_logprobs: bool | None = Field(False, description="also return the log-probability of each token")
    return_tokens: bool | None = Field(False, description="also return the ids of the tokens")


class LikelihoodBody(LikelihoodFields, CallFields):
    """The body of `POST /v1/likelihood`."""


class LikelihoodJobBody(LikelihoodFields, JobFields):
    """The body of `POST /v1/jobs` for likelihoods."""

    kind: Literal["likelihood"]
