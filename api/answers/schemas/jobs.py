"""The schemas of requests and responses in the OpenAPI document.

``scoring`` validates requests, since its errors are more precise than those of a schema, and
``api.answers.presentation`` builds responses. Tests check both against these models. The docstrings and descriptions
below are part of the document.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from api.answers.decisions.schemas import DecisionJobBody, DecisionsResponse, SystemOneResponse
from api.answers.items.request_schemas import BatchEvent, Event, JobBody, LikelihoodJobBody
from api.answers.items.result_schemas import (
    LikelihoodLine,
    LikelihoodResponse,
    ProvenanceList,
    ScoreLine,
    ScoreResponse,
    Shape,
    Usage,
)


class TokenizeBody(BaseModel):
    """The body of `POST /v1/tokenize`."""

    text: str
    model: str | None = None
    add_special_tokens: bool | None = Field(
        False, description="add what the tokenizer adds to a plain text, as scoring does to query + item"
    )


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
    kind: Literal["score", "likelihood", "decision"] = Field(description="what is wanted of its items")
    label_scoring: Literal["token", "sequence", "class"] | None = Field(
        description="what a label is; null where there are no labels to choose"
    )
    model: str
    status: Literal["receiving", "queued", "running", "succeeded", "failed", "cancelled", "expired"]
    priority: Literal["interactive", "normal", "bulk"]
    progress: Progress
    created_at: float = Field(description="Unix seconds, as all times here")
    started_at: float | None
    finished_at: float | None
    queued_seconds: float | None = Field(
        description="from `created_at` until a worker first took work of it; where none did, until its end, or until "
        "now on the clock of this server; null while its items are still received"
    )
    expires_at: float | None
    usage: Usage
    metadata: dict[str, str]
    warnings: list[str]
    error: JobErrorShape | None
    webhook: JobWebhook | None
    provenance: ProvenanceList | None = Field(None, description="once it has ended, and not in lists")
    urls: JobUrls
    result: ScoreResponse | LikelihoodResponse | SystemOneResponse | DecisionsResponse | None = Field(
        None, description="once the job has succeeded, if it has at most 1,000 items; longer ones are read in pages"
    )


class PlannedItems(Shape):
    algorithm: str
    items: int = Field(description="how many of the items it would score")
    reason: str


class WaitsFor(Shape):
    what: Literal["worker", "backlog", "quota", "storage"]
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
    stored_bytes: int = Field(description="what it takes in the database with all of its scores: docs/limits.md")
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


class ScoreList(Shape):
    object: Literal["list"] = "list"
    data: list[ScoreLine | LikelihoodLine] = Field(
        description="in the order of the items; those not scored (yet) are left out"
    )
    has_more: bool = Field(description="whether the job has items past this page")
    next_offset: int | None = Field(
        description="the `offset` of the next page, which is nearer than `limit` where the tokens of likelihoods are "
        "shown and are many; null if there is no next page"
    )


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


def _with_a_key(schema: dict[str, Any]) -> None:
    """Say that each job of a set may have an Idempotency-Key, and that one that is wrong does not refuse the set."""
    key = {
        "type": ["string", "null"],
        "pattern": r"^[\x21-\x7e]{1,255}$",
        "description": "as the header of `POST /v1/jobs`: the same key and the same job make one job",
    }
    job = {"allOf": [schema["items"], {"type": "object", "properties": {"idempotency_key": key}}]}
    schema["items"] = {"anyOf": [job, {"description": "anything else gets an error of its own"}]}


class JobSetBody(BaseModel):
    """The body of `POST /v1/jobs/sets`."""

    jobs: list[JobBody | LikelihoodJobBody | DecisionJobBody] = Field(
        min_length=1, description="at most 64; a set of more is answered with 413", json_schema_extra=_with_a_key
    )


class JobAnswer(Shape):
    """What a job of a set would be answered if it were sent, or read, alone."""

    status_code: int = Field(description="202: it is stored; 200: it is found; else `body` is an error")
    retry_after: int | None = Field(description="seconds after which sending it again may help, where an error says so")
    body: Job | ErrorEnvelope


class JobSet(Shape):
    object: Literal["list"] = "list"
    data: list[JobAnswer] = Field(description="in the order of the jobs, or of the ids")
