"""The shapes of answers about the server itself: what it is, what it serves, and whether it can."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from api.answers.schemas import Shape


class Model(Shape):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix seconds at which its oldest live worker started; 0 without one")
    owned_by: Literal["scoreline"] = "scoreline"
    max_model_len: int = Field(description="longest sequence, in tokens")
    vocabulary: int = Field(description="token ids are below this")
    delimiter: int | None = Field(description="the token between query and items in delimiter mode")
    template: str = Field(description="the template by which documents are ranked, unless a request names another")
    live_workers: int = Field(description="workers seen lately that serve just this, with the same tokenizer")


class ModelList(Shape):
    object: Literal["list"] = "list"
    data: list[Model]


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
