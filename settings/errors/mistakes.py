"""What is wrong with a setting, in one line: the variable, its value, what is expected, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

PREFIX = "SCORELINE_"
LONGEST_QUOTE = 100  # characters of a value that a message quotes

_USER = re.compile(r"[^:/@\s]*")
# Of a URL without a host. A number behind a name is taken for a port.
_NO_HOST = re.compile(r"(://[^:/?#\[\]]*:)(?!(?<!://:)\d{1,5}(?:[/?#]|$)).*", re.DOTALL)
_SECRET_OPTION = re.compile(r"((?:^|[?&\s])[^=&\s]*(?:password|secret|token)[^=&\s]*\s*=\s*)[^&\s]*", re.IGNORECASE)
_KINDS = {"integer": "a whole number", "number": "a finite number", "boolean": "true or false", "string": "a text"}
_FORMATS = {
    "ipv4network": "an IPv4 network",
    "ipv6network": "an IPv6 network",
    "path": "a path",
    "password": "a key",
}


class SettingError(Exception):
    """A setting has a value that it can't have. The message is one line for whoever set it.

    This is no ValueError, because pydantic would then wrap it in an error of its own.
    """


def setting_error(field: str, value: str, expected: str) -> SettingError:
    """Return the error for the value of a setting, from which passwords are removed.

    field: the setting's name in its slice. expected: a clause such as "it must be a number", and what to do.
    """
    said = f"is {quote(value)}" if value else "is empty"
    return SettingError(f"{variable_of(field)} {said}: {expected}")


def variable_of(field: str) -> str:
    """Return the name of the environment variable of a setting."""
    return PREFIX + field.upper()


def quote(value: str) -> str:
    """Return a value in quotes on one line, shortened, and without passwords."""
    text = without_password(value)
    return repr(text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…")


def without_password(text: str) -> str:
    """Return a URL, or what was meant to be one, with three stars in place of its password."""
    before, at, host = text.rpartition("@")
    scheme, slashes, credentials = before.rpartition("://")
    user = _USER.match(credentials)
    hidden = f"{scheme}{slashes}{user[0] if user else ''}:***@{host}" if at else _NO_HOST.sub(r"\1***", text)
    return _SECRET_OPTION.sub(r"\1***", hidden)


def explain(error: ValidationError, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what is wrong with the values of a slice, in one line. Only the first mistake of each setting is named.

    schemas: the JSON schema of each field.
    """
    told: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        name = str(detail["loc"][0])
        if name not in told:
            told[name] = _explain(name, schemas[name], detail)
    return "; ".join(told.values())


def _explain(name: str, schema: Mapping[str, Any], detail: ErrorDetails) -> str:
    if detail["type"] == "value_error":
        expected = str(detail["ctx"]["error"])  # in the words of the field's own validator
    elif schema.get("type") == "array":
        expected = f"each entry must be {describe(schema['items'])}, and commas stand between entries"
    else:
        expected = f"it must be {describe(schema)}"
    default = schema.get("default")
    otherwise = f" for the default, {_show(default)}" if isinstance(default, str | int | float) else ""
    expected += f"; correct it, or unset it{otherwise}"
    if "password" in str(schema):
        return f"{variable_of(name)} can't be used: {expected}"
    if schema.get("type") == "array":
        return f"{variable_of(name)} has the entry {quote(str(detail['input']))}: {expected}"
    return str(setting_error(name, str(detail["input"]), expected))


def describe(schema: Mapping[str, Any]) -> str:
    """Return in words which values a JSON schema allows, such as "a whole number from 0 to 65535"."""
    if "anyOf" in schema:
        return " or ".join(describe(one) for one in schema["anyOf"] if one.get("type") != "null")
    choices: list[str] = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if choices:
        return (", ".join(choices[:-1]) + " or " if choices[1:] else "") + choices[-1]
    kind = _FORMATS.get(schema.get("format", "")) or _KINDS[schema["type"]]
    bounds = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        return f"{kind} greater than {schema['exclusiveMinimum']}"
    if None not in bounds:
        return f"{kind} from {bounds[0]} to {bounds[1]}"
    return kind if bounds[0] is None else f"{kind}, {_show(bounds[0])} or greater"


def _show(default: str | float) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:.15g}" if isinstance(default, float) else str(default)
