"""The page of the HTTP interface: its routes, and the shapes of what they take and give."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.site.reference.schemas import fields, kind
from docs.site.reference.tables import code, table

DOCUMENT = Path(__file__).parents[2] / "openapi.json"
INTRODUCTION = """\
# The HTTP interface

A running service describes its routes at `/docs`, where they can be tried, and at `/openapi.json`.
[openapi.json](../openapi.json) is the same document, and this page is made of it."""

Operation = Mapping[str, Any]


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Operation]]:
    """Yield each route by its method and path, such as ``POST /v1/score``."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def page() -> str:
    """Return the page: the routes by their subject, what the service sends to webhooks, and all shapes."""
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    parts = [INTRODUCTION, document["info"]["description"].strip()]
    subject = ""
    for name, operation in sorted(operations(document), key=lambda one: _subjects(document).index(one[1]["tags"][0])):
        if operation["tags"][0] != subject:
            subject = operation["tags"][0]
            parts.append(f"## Routes: {subject}")
        parts += _operation(name, operation)
    parts.append("## What the service sends\n\nThese are the requests that [webhooks](../webhooks.md) get.")
    for name, methods in document["webhooks"].items():
        parts += _operation(name, methods["post"])
    parts.append("## Shapes")
    for name, schema in document["components"]["schemas"].items():
        parts += [f"### {name}", schema.get("description", ""), _table_of_fields(schema)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _subjects(document: Mapping[str, Any]) -> list[str]:
    """Return the subjects of the routes, in the order of their first routes."""
    return list(dict.fromkeys(operation["tags"][0] for _, operation in operations(document)))


def _operation(name: str, operation: Operation) -> list[str]:
    parts = [f"### {name}", operation.get("description", "")]
    if scopes := sorted({scope for one in operation.get("security", ()) for scope in one.get("ApiKey", ())}):
        parts.append(f"The key needs the scope {', '.join(map(code, scopes))}.")
    if parameters := operation.get("parameters"):
        rows = [
            (code(one["name"]), one["in"], kind(one["schema"]), _need(one), one.get("description", ""))
            for one in parameters
        ]
        parts.append(table(("parameter", "in", "what it can be", "default", "what it is"), rows))
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        said = content["schema"].get("description", "")
        parts.append(f"The body, as `{media_type}`: {kind(content['schema'])}. {said}".strip())
        parts += [_example(example) for example in _examples(content)]
    parts.append(table(("status", "what it says", "body"), map(_answer, operation["responses"].items())))
    return parts


def _need(parameter: Mapping[str, Any]) -> str:
    if parameter.get("required"):
        return "required"
    default = parameter["schema"].get("default")
    return "" if default is None else code(json.dumps(default))


def _answer(answer: tuple[str, Mapping[str, Any]]) -> tuple[str, str, str]:
    status, response = answer
    shapes = {kind(content["schema"]) for content in response.get("content", {}).values() if content.get("schema")}
    said = response.get("description", "").replace("Successful Response", "it is done")
    return status, said, " or ".join(sorted(shapes))


def _examples(content: Mapping[str, Any]) -> Iterator[Any]:
    if "example" in content:
        yield content["example"]
    yield from (one["value"] for one in content.get("examples", {}).values())


def _example(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"```{'' if isinstance(value, str) else 'json'}\n{text.strip()}\n```"


def _table_of_fields(schema: Mapping[str, Any]) -> str:
    rows = list(fields(schema))
    return table(("field", "what it can be", "default", "what it is"), rows) if rows else f"It is {kind(schema)}."
