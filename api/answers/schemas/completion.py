"""The schemas of ``/v1/completions`` in the OpenAPI document: what evaluation harnesses send and read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.answers.items.request_schemas import OriginFields, TokenId
from api.answers.items.result_schemas import PromptTokensDetails, Shape, WithOrigin


class CompletionBody(OriginFields):
    """The body of `POST /v1/completions`. What would write more than one token, or draw it, is refused."""

    prompt: str | list[str] | Annotated[list[TokenId], Field(min_length=1)] | list[list[TokenId]] = Field(
        description="a text, token ids, or a list of either; each prompt has one token at least"
    )
    max_tokens: Literal[0, 1] = Field(description="1: the most probable next token follows; 0: with `echo` alone")
    model: str | None = Field(None, description="the model's name; default, and `default`: the one this server serves")
    echo: bool | None = Field(False, description="return the prompt as well, with its scores")
    logprobs: Literal[0, 1] | None = Field(
        None, description="return log-probabilities; 1: also of the most probable token in each place"
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="must be 0 with `max_tokens` 1, and changes no score"
    )
    seed: int | None = Field(None, description="changes nothing: nothing is drawn")
    user: str | None = Field(None, description="changes nothing")
    timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds to wait; a completion that is out of time is given up"
    )


class CompletionLogprobs(Shape):
    """Lists of one value for each token. The first token of a prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None] = Field(
        description="the token itself and, with `logprobs: 1`, the most probable one"
    )
    text_offset: list[int] = Field(description="where the token begins, if `tokens` are joined")


class Choice(Shape):
    index: int = Field(description="the prompt's place in the request")
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["length"]


class CompletionUsage(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionResponse(WithOrigin):
    """One choice for each prompt, in their order."""

    id: str = Field(description="the id of the job that computed them")
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage
    warnings: list[str]
