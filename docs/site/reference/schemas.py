"""JSON schemas of the OpenAPI document in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from docs.site.reference.tables import code

_KINDS = {
    "string": ("a text", "texts"),
    "integer": ("a whole number", "whole numbers"),
    "number": ("a number", "numbers"),
    "boolean": ("true or false", "true or false"),
    "object": ("an object", "objects"),
    "null": ("null", "null"),
}
"""What a value of a type is called: one of them, and several."""

_BOUNDS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("minLength", "{} characters or more"),
    ("maxLength", "{} characters at most"),
    ("minItems", "{} or more"),
    ("maxItems", "{} at most"),
    ("maxProperties", "{} at most"),
)


def kind(schema: Mapping[str, Any], several: bool = False) -> str:
    """Return in words what a value can be, with links to the shapes that have a name.

    several: whether the words are for several such values.
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return code(json.dumps(schema["const"], ensure_ascii=False))
    if "enum" in schema:
        return ", ".join(code(json.dumps(one, ensure_ascii=False)) for one in schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(kind(one, several) for one in schema[choice]))
    if schema.get("type") == "array":
        words = "lists" if several else "a list"
        words += f" of {kind(schema['items'], several=True)}" if schema.get("items") else ""
    elif schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        words = "objects" if several else "an object"
        words += f" with {kind(schema['additionalProperties'], several=True)} under names of their own"
    else:
        words = _KINDS.get(schema.get("type", ""), ("anything", "anything"))[several]
    bounds = [_bound(name, said, schema[name]) for name, said in _BOUNDS if name in schema]
    return f"{words} ({', '.join(bounds)})" if bounds else words


def _bound(name: str, said: str, value: Any) -> str:
    match name, value:
        case (("minLength" | "minItems"), 1):
            return "not empty"
        case "minimum", 0:
            return "0 or more"
    return said.format(value)


def fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, the kind, the default and the meaning of each field of an object."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        default = "" if field.get("default") is None else code(json.dumps(field["default"], ensure_ascii=False))
        yield code(name), kind(field), "required" if name in required else default, field.get("description", "")
