"""The schemas of ``/v1/batches`` in the OpenAPI document: those of OpenAI's interface, and a webhook."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from api.answers.items.request_schemas import BatchEvent
from api.answers.items.result_schemas import Shape
from public_api.paths import CallPath


class BatchWebhookBody(BaseModel):
    """Where to be told of a batch's end: a signed POST, sent again until it is answered with 2xx."""

    url: str = Field(description="https, at a public address")
    events: Annotated[list[BatchEvent], Field(min_length=1)] | None = Field(
        None, description="which ends to be told of; default: all"
    )


class BatchBody(BaseModel):
    """The body of `POST /v1/batches`."""

    input_file_id: str = Field(description="a file of JSON lines, uploaded with the purpose `batch`")
    endpoint: CallPath = Field(description="to which all lines are requests")
    completion_window: str = Field(
        pattern=r"^[1-9][0-9]{0,7}[smhd]$", description="such as `24h`: after this, what is not scored yet is given up"
    )
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = Field(
        None, description="at most 16 strings of up to 512 characters, under names of up to 64; returned as they are"
    )
    webhook: BatchWebhookBody | None = Field(None, description="where to be told of the batch's end; default: nowhere")


class BatchError(Shape):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(Shape):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(Shape):
    total: int = Field(description="lines of the file, blank ones left out")
    completed: int = Field(description="lines written to the output file so far")
    failed: int = Field(description="lines written to the error file so far")


class BatchInputTokensDetails(Shape):
    cached_tokens: int


class BatchOutputTokensDetails(Shape):
    reasoning_tokens: Literal[0] = 0


class BatchUsage(Shape):
    """The tokens of the lines in the output file."""

    input_tokens: int
    input_tokens_details: BatchInputTokensDetails
    output_tokens: Literal[0] = 0
    output_tokens_details: BatchOutputTokensDetails
    total_tokens: int


class BatchWebhook(Shape):
    url: str
    events: list[BatchEvent]


class Batch(Shape):
    """A batch: the lines of a file are requests, and what they are answered is written to files."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: CallPath
    model: str
    errors: BatchErrors | None = Field(
        description="why the file could not be read as lines, if the batch failed; why its further lines wait, while "
        "they do: for room in what the tenant may store, with the code `quota_exceeded`, or for a model that can't be "
        "used now, with the code `model_unavailable`"
    )
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None = Field(description="once it has ended, if a line was answered")
    error_file_id: str | None = Field(description="once it has ended, if a line failed")
    created_at: int = Field(description="Unix seconds, as all times here")
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str]
    webhook: BatchWebhook | None
    warnings: list[str] | None = Field(
        None, description="unknown fields that were ignored; only in the answer to the request that creates the batch"
    )


class BatchList(Shape):
    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchUrls(Shape):
    self: str
    events: str
    cancel: str
    deliveries: str


class BatchEventData(Shape):
    id: str
    status: Literal["completed", "failed", "cancelled", "expired"]
    urls: BatchUrls


class BatchEnd(Shape):
    """What a webhook is sent when a batch has ended."""

    type: BatchEvent
    timestamp: str = Field(description="when the batch ended: ISO 8601, in UTC")
    data: BatchEventData


class DeletedBatch(Shape):
    id: str
    object: Literal["batch"] = "batch"
    deleted: Literal[True] = True
