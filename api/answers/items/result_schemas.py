"""The schemas of scores and likelihoods in the OpenAPI document, and of what computed them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """The base of the models of responses, which list all fields of a response."""

    model_config = ConfigDict(extra="forbid")


class PromptTokensDetails(Shape):
    cached_tokens: int = Field(description="how many of the prompt tokens did not have to be computed again")


class Usage(Shape):
    prompt_tokens: int = Field(description="the lengths of all sequences, summed")
    completion_tokens: Literal[0] = 0
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    reused_items: int = Field(
        description="items that were not computed, because an equal item of the job was, or one of an earlier job"
    )


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
    configuration: str | None = Field(
        description="a hash of the model's configuration, and of how the worker chooses algorithms; null if an earlier "
        "version did not say"
    )
    versions: dict[str, str] = Field(description="of this service and of the libraries that compute")
    algorithms: list[str] = Field(description="by which the items were scored (docs/algorithms.md)")
    calibration: str | None = Field(
        None, description="the id of the calibration that was applied; null for a threshold that has none"
    )
    threshold: str | None = Field(None, description="the id of the threshold that decided")


ProvenanceList = Annotated[
    list[Provenance | None],
    Field(
        description="what computed the scores; several entries if workers that differ did; null stands for scores of a "
        "version that recorded nothing"
    ),
]


class WithOrigin(Shape):
    """An answer that says how it was made, if the request asks for it."""

    provenance: ProvenanceList | None = Field(None, description="with `return_provenance`")
    receipt: str | None = Field(
        None,
        description="with `return_receipt`: a JSON Web Signature over the digests of request and answer and over the "
        "provenance; `/.well-known/jwks.json` has the keys",
    )


Row = list[float]
NullableRow = list[float | None]


class Baseline(Shape):
    """What the texts of a baseline got: a row each."""

    scores: list[Row]
    label_mass: list[float] | None = None


class ScoreResponse(WithOrigin):
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
        "together. A tiny share means that the prompt is probably wrong",
    )
    relevance: list[float] | None = Field(
        None, description="of each item, if the request names a template and has its labels: by the template's formula"
    )
    adjusted: list[Row] | None = Field(
        None,
        description="with a `baseline`: the probability of each label, divided by the geometric mean of what the "
        "baseline gets, with a sum of 1 in each row",
    )
    baseline: Baseline | None = Field(None, description="what the items of a `baseline` got")
    calibrated: list[Row] | None = Field(
        None,
        description="the calibrated probability of each label, with a sum of 1 in each row, if the request names a "
        "`calibration`, or a `threshold` with one",
    )
    action: list[str] | None = Field(
        None,
        description="of each item, if the request names a `threshold`: a label as its artefact calls it, or `abstain`",
    )
    label_set: list[list[str]] | None = Field(
        None,
        description="of each item, if the threshold is for more than two labels: those that may be true, the most "
        "probable first",
    )
    usage: Usage
    warnings: list[str]


class ScoreLine(Shape):
    """One item's scores."""

    index: int = Field(description="the item's place in the request")
    scores: Row
    logprobs: NullableRow | None = None
    logits: NullableRow | None = None
    label_mass: float | None = None
    relevance: float | None = None
    calibrated: Row | None = None
    action: str | None = None
    label_set: list[str] | None = None


class LikelihoodResponse(WithOrigin):
    """Likelihoods: one value an item in each list, in the order of the request."""

    id: str = Field(description="the id of the job that computed them")
    object: Literal["likelihood"] = "likelihood"
    model: str
    created: int = Field(description="Unix seconds")
    logprob: list[float | None] = Field(
        description="the sum of the log-probabilities of the item's tokens, each after the query and the tokens before "
        "it; null stands for minus infinity"
    )
    num_tokens: list[int] = Field(description="how many tokens the item has; what merges with the query counts")
    is_greedy: list[bool] = Field(description="whether each of its tokens was the most probable one")
    token_logprobs: list[list[float | None]] | None = Field(None, description="with `return_token_logprobs`")
    tokens: list[list[int]] | None = Field(None, description="with `return_tokens`")
    usage: Usage
    warnings: list[str]


class LikelihoodLine(Shape):
    """One item's likelihood."""

    index: int = Field(description="the item's place in the request")
    logprob: float | None
    num_tokens: int
    is_greedy: bool
    token_logprobs: list[float | None] | None = None
    tokens: list[int] | None = None
