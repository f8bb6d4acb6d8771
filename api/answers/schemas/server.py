"""The shapes of answers about the server itself and the model that it serves, and about the texts of jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.answers.items.result_schemas import Shape
from checkpoints.classification import Activation


class ServedTemplate(Shape):
    """How a model can be asked, by a name that requests may give."""

    name: str
    labels: list[str] = Field(description="of a request that names it and has no labels of its own")
    relevance: str = Field(description="how the scores of the labels make one number")
    digest: str = Field(description="of what its scores depend on; `name@digest` names the template in just this state")


class ServedClasses(Shape):
    """The classes of a model that was trained to classify, or the labels of a decision head."""

    names: list[str] = Field(description="those that a request may name as labels; without labels, it has all")
    activation: Activation = Field(
        description="how the outputs of the model become scores; identity: they are scores; decisions: they answer "
        "questions, and nothing else is served"
    )


TemplateOfRankings = Annotated[
    str | None,
    Field(description="by which documents are ranked, unless a request names another; null: classes have no such one"),
]
"""The name of a template."""


class ServedArtefact(Shape):
    name: str = Field(description="by which requests name it, in the field that its kind is called")
    kind: Literal["calibration", "threshold"]
    labels: list[str] = Field(description="the labels that it is for, as it calls them")
    id: str = Field(description="a hash of the artefact")


class Model(Shape):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix seconds at which its oldest live worker started; 0 without one")
    owned_by: Literal["scoreline"] = "scoreline"
    parent: str | None = Field(description="the model alone, if this is the model with an adapter")
    aliases: list[str] = Field(description="further names that requests may give")
    version: int | None = Field(
        description="grows with each change of a model of the catalogue; null: the environment describes the model"
    )
    max_model_len: int = Field(description="longest sequence, in tokens")
    vocabulary: int = Field(description="token ids are below this")
    delimiter: int | None = Field(description="the token between query and items in delimiter mode")
    classes: ServedClasses | None = Field(description="null: the model gives probabilities of next tokens")
    template: TemplateOfRankings
    templates: list[ServedTemplate] = Field(description="those that a request may name")
    artefacts: list[ServedArtefact] = Field(description="calibrations and thresholds that were made for it")
    live_workers: int = Field(description="workers seen lately that serve just this, with the same tokenizer")


class NamedModel(Shape):
    name: str
    description: str
    release_date: str = Field(description="YYYY-MM-DD in UTC: when its oldest live worker started; today without one")


class ModelList(Shape):
    object: Literal["list"] = "list"
    data: list[Model]
    models: list[NamedModel] = Field(
        description="the same for clients of System One: a name that requests may give, each"
    )


class Health(Shape):
    status: Literal["ok"] = "ok"


class Door(Shape):
    method: str
    path: str
    summary: str


class Start(Shape):
    """What a server is, and what it offers."""

    object: Literal["service"] = "service"
    name: Literal["scoreline"] = "scoreline"
    version: str
    documentation: str = Field(description="the path of the documentation for browsers")
    openapi: str = Field(description="the path of this document")
    doors: list[Door]


class ReadyModel(Shape):
    id: str
    tokenizer: str = Field(description="the beginning of the tokenizer's fingerprint")
    vocabulary: int
    max_model_len: int
    delimiter: int | None


class ReadyWorkers(Shape):
    live: int = Field(description="workers of this model's name that were seen lately")
    matching: int = Field(description="those with this server's tokenizer, vocabulary, context and delimiter")


class Readiness(Shape):
    """What a server that is ready serves, and how the workers compare."""

    status: Literal["ok"] = "ok"
    model: ReadyModel
    workers: ReadyWorkers
    warnings: list[str] = Field(description="what differs among the workers and does not keep work from being scored")


class PublishedKey(Shape):
    """A public key of Ed25519 (RFC 8037)."""

    kty: Literal["OKP"]
    crv: Literal["Ed25519"]
    x: str = Field(description="the key, in Base64 for URLs")
    kid: str = Field(description="its thumbprint (RFC 7638), which the headers of receipts name")
    use: Literal["sig"]


class PublishedKeys(Shape):
    """The keys by which receipts are verified; none if this server signs none."""

    keys: list[PublishedKey]


class OverviewWorker(Shape):
    device: str = Field(description="the platform and the kind of the device")
    dtype: str = Field(description="the number format of weights and activations")
    started_at: float = Field(description="Unix seconds, as all times here")
    last_seen: float
    tokens_per_second: float | None = Field(description="what it computes, as it measured it lately; null before that")


class OverviewWaiting(Shape):
    chunks: int = Field(description="portions of the caller's jobs and calls that wait for a worker")
    tokens: int = Field(description="the work to score them, as quotas count it")
    oldest_seconds: float = Field(description="for how long the first of them has been due; 0 if none is")
    estimated_seconds: float | None = Field(
        description="until all of them are scored, behind the shares of others; null while nobody knows the pace"
    )


class Overview(Shape):
    """The model, its live workers, and what waits of the caller's own work. Numbers are a second old or more."""

    object: Literal["overview"] = "overview"
    version: str = Field(description="of the service")
    model: str
    max_model_len: int = Field(description="longest sequence, in tokens")
    template: TemplateOfRankings
    workers: list[OverviewWorker] = Field(description="those seen lately that serve just this model, oldest first")
    waiting: OverviewWaiting
    warnings: list[str] = Field(description="what differs among the workers, or keeps them from this server's work")


class InputText(Shape):
    text: str | None = Field(description="null if this server has another tokenizer than the one the job was made with")
    tokens: int = Field(description="how many tokens it has in all; an item's are those behind the query")
    is_cut: bool = Field(description="whether the text shows the first tokens only")


class ItemText(InputText):
    index: int = Field(description="the item's place in the request")


class LabelText(Shape):
    ids: list[int] = Field(description="its tokens")
    text: str | None


class JobItems(Shape):
    """What a job was asked."""

    object: Literal["list"] = "list"
    query: InputText
    labels: list[LabelText] | None = Field(
        description="in the order of the scores; null if each item has labels of its own"
    )
    data: list[ItemText] = Field(description="the items that were asked for and exist, in that order")
