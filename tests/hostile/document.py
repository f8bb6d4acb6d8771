"""Read the OpenAPI document of a running service: its operations, their parameters and the fields of their bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

JSON = "application/json"
JSON_LINES = "application/x-ndjson"

UNDOCUMENTED_PATHS = ("/openapi.json", "/docs")
"""Paths that are served and are not in the document."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of an operation."""

    name: str
    place: str  # `path`, `query` or `header`


@dataclass(frozen=True)
class Operation:
    """An operation, a valid request for it, and what may be answered."""

    method: str
    path: str
    parameters: tuple[Parameter, ...]
    media_type: str  # of the body; empty if there is none
    example: bytes  # a valid body; empty if there is none
    fields: tuple[str, ...]  # paths of the fields of a JSON body, such as `webhook.url` and `items[0]`
    answers: Mapping[int, frozenset[str]]  # media types by status

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Document:
    """The document."""

    operations: tuple[Operation, ...]
    codes: Mapping[str, int]  # the status of each error code

    def operation(self, method: str, path: str, media_type: str = JSON) -> Operation:
        """Return one operation. One that takes bodies is listed once for each media type."""
        (found,) = [
            operation
            for operation in self.operations
            if (operation.method, operation.path) == (method, path) and operation.media_type in ("", media_type)
        ]
        return found


def read_document(document: Mapping[str, Any]) -> Document:
    """Return what attacks need of an OpenAPI document."""
    operations = tuple(
        operation
        for path, methods in document["paths"].items()
        for method, described in methods.items()
        for operation in _operations(document, method, path, described)
    )
    codes: dict[str, int] = {}
    for methods in document["paths"].values():
        for described in methods.values():
            for status, response in described["responses"].items():
                for content in response.get("content", {}).values():
                    for code in content.get("examples", {}):
                        codes[code] = int(status)
    return Document(operations, codes)


def _operations(
    document: Mapping[str, Any], method: str, path: str, described: Mapping[str, Any]
) -> Iterator[Operation]:
    parameters = tuple(Parameter(one["name"], one["in"]) for one in described.get("parameters", []))
    answers = {
        int(status): frozenset(response.get("content", {})) for status, response in described["responses"].items()
    }
    contents = described.get("requestBody", {}).get("content", {})
    if not contents:
        yield Operation(method, path, parameters, "", b"", (), answers)
    for media_type, content in contents.items():
        if media_type == JSON:
            example = json.dumps(next(iter(content["examples"].values()))["value"]).encode()
            fields = tuple(_fields(document, content["schema"]))
        else:
            example, fields = content["example"].encode(), ()
        yield Operation(method, path, parameters, media_type, example, fields, answers)


def _fields(document: Mapping[str, Any], schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all fields of an object, of the first element of each list, and of one name of each map."""
    for alternative in _alternatives(document, schema):
        for name, value in alternative.get("properties", {}).items():
            yield f"{prefix}{name}"
            yield from _inside(document, value, f"{prefix}{name}")


def _inside(document: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    kinds = _alternatives(document, schema)
    elements = [kind["items"] for kind in kinds if kind.get("type") == "array"]
    if elements:
        yield f"{path}[0]"
    if any(inner.get("type") == "array" for element in elements for inner in _alternatives(document, element)):
        yield f"{path}[0][0]"
    for kind in kinds:
        if kind.get("properties"):
            yield from _fields(document, kind, f"{path}.")
        elif isinstance(kind.get("additionalProperties"), dict):
            yield f"{path}.name"


def _alternatives(document: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schemas that a value may have, without references."""
    if "$ref" in schema:
        node: Any = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            node = node[step]
        return _alternatives(document, node)
    if "anyOf" in schema:
        return [kind for choice in schema["anyOf"] for kind in _alternatives(document, choice)]
    return [schema]
