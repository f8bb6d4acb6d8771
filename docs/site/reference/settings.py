"""The page of all settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs.site.reference.tables import code, table
from settings.errors.mistakes import describe, variable_of
from settings.slice import SettingsSlice
from settings.unknown import SLICES

INTRODUCTION = """\
# Settings

Every setting is an environment variable. Processes read them when they start. An empty value of a setting without
a default counts as unset. A wrong value ends the process with one line that names the variable, its value, and
what is expected. A variable whose name is no setting is named in the log. `SCORELINE_URL` and `SCORELINE_API_KEY` are
no settings of the service: the [command](command.md) and the [client](client.md) read them. In the tables, a *count* is
a whole number above 0, and a *number* is a finite number above 0."""

SHORT = {"a whole number greater than 0": "count", "a finite number greater than 0": "number", "a text": "text"}
"""What the tables call the kinds that most settings have; the introduction explains the words."""


def page() -> str:
    """Return the page: a table for each group of settings."""
    return "\n\n".join([INTRODUCTION, *(_section(one) for one in SLICES)]) + "\n"


def _section(settings: type[SettingsSlice]) -> str:
    title, _, rest = (settings.__doc__ or "").strip().partition("\n")
    schemas: Mapping[str, Mapping[str, Any]] = settings.model_json_schema()["properties"]
    rows = [
        (code(variable_of(name)), _kind(schemas[name]), written_default(field.default), field.description or "")
        for name, field in settings.model_fields.items()
    ]
    # The first sentence is the heading, without its full stop.
    heading, _, more = title.partition(". ")
    said = "\n".join(part for part in (more, rest.strip()) if part)
    parts = [f"## {heading.rstrip('.')}", said, table(("variable", "what it can be", "default", "what it is"), rows)]
    return "\n\n".join(part for part in parts if part)


def _kind(schema: Mapping[str, Any]) -> str:
    """Return in words which values a setting can have."""
    if schema.get("type") == "array":
        return f"a list with commas: {describe(schema['items'])}"
    kind = describe(schema)
    return SHORT.get(kind, kind)


def written_default(default: object) -> str:
    """Return a default as it would be written in the environment."""
    if default is None or default == ():
        return "unset"
    if isinstance(default, tuple):
        return code(",".join(map(str, default)))
    return code(str(default).lower() if isinstance(default, bool) else str(default))
