"""The schemas of requests and responses in the OpenAPI document.

``scoring`` validates requests, since its errors are more precise than those of a schema, and
``api.answers.presentation`` builds responses. Tests check both against these models. The docstrings and descriptions
below are part of the document.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

TokenId = Annotated[int, Field(ge=0)]


class Shape(BaseModel):
    """The base of the models of responses, which list all fields of a response."""

    model_config = ConfigDict(extra="forbid")


_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_ONE_KIND_OF_INPUT: dict[str, Any] = {
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
        {"required": ["labels"], "properties": {"labels": _TEXTS, "label_token_ids": {"type": "null"}}},
        {"required": ["template"], "properties": {"template": {"type": "string"}}},
    ]
}


class ScoreFields(BaseModel):
    """What is scored: P(label | query + item) for every item and label. Unknown fields are ignored with a warning."""

    model_config = ConfigDict(json_schema_extra={"allOf": [_ONE_KIND_OF_INPUT, _ONE_KIND_OF_LABELS]})

    query: Annotated[str, Field(min_length=1)] | Annotated[list[TokenId], Field(min_length=1)] = Field(
        description="the shared context: text, or token ids"
    )
    items: list[str] | list[list[TokenId]] | str | list[TokenId] = Field(
        description="what is appended to the query, one sequence each: texts with a text query, lists of token ids "
        "with a query of token ids; a single text or one flat list of ids is one item; an item may be empty"
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
    labels: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, min_length=1, description="candidate next tokens as texts, each of which must encode to exactly one token"
    )
    query_template: str | None = Field(
        None,
        description="the text that the query becomes: `{query}` stands for it, `{instruction}` for the instruction. "
        "Only for texts. In what clients write in place of these, braces are text and special tokens are read as such",
    )
    item_template: str | None = Field(None, description="the same for each item, for which `{item}` stands")
    template: str | None = Field(
        None, description="the name of a template of the server, instead of these two; it has labels of its own, too"
    )
    instruction: str | None = Field(None, description="what the template says the task is, if it has a place for it")
    model: str | None = Field(None, description="the model's name; default, and `default`: the one this server serves")
    apply_softmax: bool | None = Field(
        False, description="false: scores are probabilities over the whole vocabulary; true: each row sums to 1"
    )
    temperature: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        1.0, description="divides the logits before `apply_softmax`; other than 1 only with `apply_softmax`"
    )
    item_first: bool | None = Field(False, description="score item + query instead of query + item")
    return_logprobs: bool | None = Field(False, description="also return log-probabilities over the whole vocabulary")
    return_logits: bool | None = Field(False, description="also return raw logits")
    return_provenance: bool | None = Field(
        False, description="also return what computed the scores: what is needed to get the same bits again"
    )


class ScoreBody(ScoreFields):
    """The body of `POST /v1/score`."""

    timeout: Annotated[float, Field(gt=0)] | None = Field(None, description="seconds to wait for the scores")
    on_timeout: Literal["continue", "cancel"] | None = Field(
        None, description="what becomes of the job when the time is up; default: it goes on"
    )


Event = Literal["job.succeeded", "job.failed", "job.cancelled", "job.expired"]
BatchEvent = Literal["batch.completed", "batch.failed", "batch.cancelled", "batch.expired"]


class WebhookBody(BaseModel):
    """Where to be told of a job's end: a signed POST, sent again until it is answered with 2xx."""

    url: str = Field(description="https, at a public address")
    events: Annotated[list[Event], Field(min_length=1)] | None = Field(
        None, description="which ends to be told of; default: all"
    )


class JobBody(ScoreFields):
    """The body of `POST /v1/jobs`."""

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


class TokenizeBody(BaseModel):
    """The body of `POST /v1/tokenize`."""

    text: str
    model: str | None = None
    add_special_tokens: bool | None = Field(
        False, description="add what the tokenizer adds to a plain text, as scoring does to query + item"
    )


class PromptTokensDetails(Shape):
    cached_tokens: int = Field(description="how many of the prompt tokens did not have to be computed again")


class Usage(Shape):
    prompt_tokens: int = Field(description="the lengths of all sequences, summed")
    completion_tokens: Literal[0] = 0
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Provenance(Shape):
    """What computed scores: with the same request and all of this, another worker gives the same bits."""

    model: str
    revision: str | None = Field(description="the commit on the hub; null for a model from a folder")
    weights_fingerprint: str = Field(description="a hash of all weights as they are stored")
    tokenizer_fingerprint: str = Field(description="a hash of the tokenizer, with which the request was tokenized, too")
    dtype: str = Field(description="the number format of weights and activations")
    device: str = Field(description="the platform and the kind of the device")
    processor: str | None = Field(description="of a device that is a processor: its name, and the cores in use")
    step_tokens: int = Field(description="tokens of the largest step, on which the bits of large products may depend")
    batch_invariant: bool = Field(description="false: the rounding may depend on what else was scored")
    versions: dict[str, str] = Field(description="of this service and of the libraries that compute")
    algorithms: list[str] = Field(description="by which the items were scored (docs/algorithms.md)")


ProvenanceList = Annotated[
    list[Provenance | None],
    Field(
        description="what computed the scores; several entries if workers that differ did; null stands for scores of a "
        "version that recorded nothing"
    ),
]

Row = list[float]
NullableRow = list[float | None]


class ScoreResponse(Shape):
    """Scores: one row an item, one column a label, in the order of the request."""

    id: str = Field(description="the id of the job that computed them")
    object: Literal["scoring"] = "scoring"
    model: str
    created: int = Field(description="Unix seconds")
    scores: list[Row]
    logprobs: list[NullableRow] | None = Field(None, description="if asked for; null stands for minus infinity")
    logits: list[NullableRow] | None = Field(None, description="if asked for; null stands for an infinity")
    label_mass: list[float] | None = Field(
        None,
        description="of each item: the share of the probability over the whole vocabulary that the labels have "
        "together; absent with `apply_softmax` alone, which needs no such probability. A tiny share means that the "
        "prompt is probably wrong",
    )
    usage: Usage
    warnings: list[str]
    provenance: ProvenanceList | None = Field(None, description="with `return_provenance`")


class Progress(Shape):
    total_items: int
    scored_items: int


class JobErrorShape(Shape):
    code: str
    message: str


class JobUrls(Shape):
    self: str
    scores: str
    events: str
    cancel: str
    deliveries: str


class JobWebhook(Shape):
    url: str
    events: list[Event]


class Job(Shape):
    """A scoring job."""

    id: str
    object: Literal["scoring.job"] = "scoring.job"
    model: str
    status: Literal["receiving", "queued", "running", "succeeded", "failed", "cancelled", "expired"]
    priority: Literal["interactive", "normal", "bulk"]
    progress: Progress
    created_at: float = Field(description="Unix seconds, as all times here")
    started_at: float | None
    finished_at: float | None
    expires_at: float | None
    usage: Usage
    metadata: dict[str, str]
    warnings: list[str]
    error: JobErrorShape | None
    webhook: JobWebhook | None
    provenance: ProvenanceList | None = Field(None, description="once it has ended, and not in lists")
    urls: JobUrls
    result: ScoreResponse | None = Field(
        None, description="once the job has succeeded, if it has at most 1,000 items; longer ones are read in pages"
    )


class PlannedItems(Shape):
    algorithm: str
    items: int = Field(description="how many of the items it would score")
    reason: str


class WaitsFor(Shape):
    what: Literal["worker", "backlog", "quota"]
    message: str


class DryRun(Shape):
    """What a job would take, if it were submitted now. Times are estimates."""

    object: Literal["scoring.dry_run"] = "scoring.dry_run"
    model: str
    total_items: int
    usage: Usage = Field(
        description="as the job would have it: its tokens, and how many of them are shared if no worker knows the query"
    )
    work: int = Field(description="tokens to compute, as quotas count them: docs/limits.md")
    plan: list[PlannedItems] | None = Field(description="null while no worker says how it plans")
    estimated_seconds: float | None = Field(description="of scoring it, by all live workers; null if nobody knows")
    estimated_wait_seconds: float | None = Field(description="before that; null if nobody knows")
    calibrated: bool = Field(
        description="whether the estimate rests on times that the workers have measured; if not, on those of another "
        "machine of their kind"
    )
    waits_for: list[WaitsFor] = Field(description="what it would wait for; empty if it would be scored at once")
    warnings: list[str]


class JobList(Shape):
    object: Literal["list"] = "list"
    data: list[Job] = Field(description="newest first, without results")
    has_more: bool


class DeletedJob(Shape):
    id: str
    object: Literal["scoring.job"] = "scoring.job"
    deleted: Literal[True] = True


class ScoreLine(Shape):
    """One item's scores."""

    index: int = Field(description="the item's place in the request")
    scores: Row
    logprobs: NullableRow | None = None
    logits: NullableRow | None = None
    label_mass: float | None = None


class ScoreList(Shape):
    object: Literal["list"] = "list"
    data: list[ScoreLine] = Field(description="in the order of the items; those not scored (yet) are left out")
    has_more: bool = Field(description="whether the job has items past this page")


class DeliveryAttempt(Shape):
    number: int
    started_at: float
    seconds: float | None = Field(description="that it took; null where nobody knows")
    outcome: str = Field(
        description="`delivered`, or why not: `status` (not a 2xx), `redirect`, `timeout`, `connection`, `tls`, "
        "`resolution`, `forbidden_address`, `too_large`, `bad_response`, `internal` (a fault of the service; it may "
        "have arrived), `lost` (its sender was; it may have arrived)"
    )
    detail: str
    status: int | None = Field(description="HTTP's, where there was an answer")
    response: str = Field(description="the beginning of the answer's body, at most 1 KiB")


class DeliveryEndpoint(Shape):
    failing_since: float | None = Field(description="the first failure since the last success at this URL")
    disabled_at: float | None = Field(description="since when nothing is sent to this URL unless it is called for")


class Delivery(Shape):
    """An event on its way to a webhook."""

    id: str = Field(description="the `webhook-id` of every attempt")
    object: Literal["webhook.delivery"] = "webhook.delivery"
    job_id: str | None = Field(description="of the job that ended")
    batch_id: str | None = Field(description="of the batch that ended")
    event: Event | BatchEvent
    url: str
    state: Literal["pending", "delivered", "failed", "skipped"] = Field(
        description="`failed`: all attempts did; `skipped`: the endpoint is disabled"
    )
    created_at: float
    next_attempt_at: float | None = Field(description="null where there is none, or one is under way")
    attempts: list[DeliveryAttempt] = Field(description="the last 50, in order")
    endpoint: DeliveryEndpoint


class DeliveryList(Shape):
    object: Literal["list"] = "list"
    data: list[Delivery]


class EventData(Shape):
    id: str
    status: Literal["succeeded", "failed", "cancelled", "expired"]
    urls: JobUrls


class JobEvent(Shape):
    """What a webhook is sent."""

    type: Event
    timestamp: str = Field(description="when the job ended: ISO 8601, in UTC")
    data: EventData


class WebhookSecret(Shape):
    object: Literal["webhook.secret"] = "webhook.secret"
    secret: str = Field(description="`whsec_` and the key in base64, as Standard Webhooks has it")
    created_at: float
    expires_at: float | None = Field(description="when it signs no more; null of the current one")


class WebhookSecretList(Shape):
    object: Literal["list"] = "list"
    data: list[WebhookSecret]


class Tokens(Shape):
    model: str
    tokens: list[int]
    pieces: list[str]
    count: int
    max_model_len: int


class ErrorShape(Shape):
    message: str
    type: str
    param: str | None
    code: str
    job_id: str | None = Field(None, description="of the job that the error is about; only in answers to calls")


class ErrorEnvelope(Shape):
    """Every failure, in OpenAI's envelope."""

    error: ErrorShape
