"""Correct the OpenAPI document of FastAPI, which does not know the bodies that the routes read themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.answers.examples import ANSWERS
from api.answers.schemas.jobs import ErrorEnvelope

DESCRIPTION = """\
Scores candidate items against a query with a causal language model: P(label | query + item), the probability that a
label is the next token after the query and an item. Submit a job and read it later, or call `/v1/score` and wait.

Failures come as `{"error": {"message", "type", "param", "code"}}`. Every response has an `x-request-id`: the request's
own where it sent a sane one. With an `Idempotency-Key`, a request that is sent again is the same request.
"""

_REF = "#/components/schemas/{model}"


class BodySchema(dict[str, Any]):
    """The ``openapi_extra`` of a route: what its body is. Its models are described in the document, too."""

    def __init__(self, media_type: str, models: Sequence[type[BaseModel]], **described: Any) -> None:
        schemas = [{"$ref": _REF.format(model=one.__name__)} for one in models]
        content = {"schema": {"anyOf": schemas} if len(schemas) > 1 else schemas[0], **described}
        super().__init__(requestBody={"required": True, "content": {media_type: content}})
        self.models = models


def json_body(*models: type[BaseModel], examples: Sequence[dict[str, Any]]) -> BodySchema:
    """Return the ``openapi_extra`` of a route whose body is JSON with the schema of one of these models."""
    shown = {f"example {n}": {"value": example} for n, example in enumerate(examples, 1)}
    return BodySchema("application/json", models, examples=shown)


def add_lines_body(extra: BodySchema, media_type: str, description: str, example: str) -> BodySchema:
    """Add a body of lines with this media type to the result of :func:`json_body`."""
    lines = {"schema": {"type": "string", "description": description}, "example": example}
    extra["requestBody"]["content"][media_type] = lines
    return extra


def install_openapi(app: FastAPI) -> None:
    """Set the function that makes the application's OpenAPI document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes, webhooks=app.webhooks.routes
    )
    schemas = document["components"]["schemas"]
    described = [route.openapi_extra for route in app.routes if isinstance(route, APIRoute)]
    models = [ErrorEnvelope, *(model for one in described if isinstance(one, BodySchema) for model in one.models)]
    bodies = [(model, "validation") for model in models]
    _, definitions = models_json_schema(bodies, ref_template=_REF)  # type: ignore[arg-type]
    schemas.update(definitions["$defs"])
    # FastAPI documents a 422 of its own for each route with parameters, but the routes answer with 400 and an envelope.
    for operations in (*document["paths"].values(), *document["webhooks"].values()):
        for operation in operations.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
            _restore_nulls(operation["responses"])
            _add_examples(operation["responses"])
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    return document


def _add_examples(responses: dict[str, Any]) -> None:
    """Add an example to each answer that has a shape. FastAPI would remove the nulls in it."""
    for status, response in responses.items():
        content = response.get("content", {}).get("application/json", {})
        shape = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        if status.startswith("2") and shape in ANSWERS:
            content["example"] = ANSWERS[shape]


def _restore_nulls(responses: dict[str, Any]) -> None:
    """Restore ``"param": null`` in the examples: FastAPI removes nulls, but the envelope requires the field."""
    for response in responses.values():
        for example in response.get("content", {}).get("application/json", {}).get("examples", {}).values():
            example["value"]["error"].setdefault("param", None)
