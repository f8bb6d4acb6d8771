"""Strict JSON: what Python's parser lets through but JSON, or this service, does not."""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from scoring.errors import ErrorCode, RequestError

MAX_DEPTH = 64
"""Deepest nesting of lists and objects that is taken; a scoring request needs three."""

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(data: bytes) -> object:
    """The value that ``data``, UTF-8 JSON, stands for.

    Raises :class:`RequestError`: ``invalid_json`` where it is not JSON, ``invalid_request`` for NaN, infinities
    (``1e999`` too), lone surrogates, integers of thousands of digits and nesting past :data:`MAX_DEPTH`.
    """
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RequestError(ErrorCode.INVALID_JSON, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # Python's own guard against quadratic time on integers of more than 4,300 digits.
        raise RequestError(ErrorCode.INVALID_REQUEST, "the body holds an integer with too many digits") from None
    _check_depth(value)
    # Only an escape can bring half a surrogate pair into a decoded body, so most bodies need no walk.
    if _SURROGATE_ESCAPE.search(data) and (path := _lone_surrogate(value, "")) is not None:
        place = path.removeprefix(".")
        message = f"{place or 'the body'} holds a lone surrogate, which is not valid Unicode text"
        raise RequestError(ErrorCode.INVALID_REQUEST, message, param=place or None)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(ErrorCode.INVALID_REQUEST, f"the body holds {name}, which is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise RequestError(ErrorCode.INVALID_REQUEST, "the body holds a number too large for a double")
    return value


def _check_depth(value: object) -> None:
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, list | dict)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"the body is nested deeper than {MAX_DEPTH} levels")


def _lone_surrogate(value: object, path: str) -> str | None:
    """The path of the first string that is not Unicode text, or None. A key counts for its object."""
    if isinstance(value, str):
        return path if _is_broken(value) else None
    if isinstance(value, list):
        for n, child in enumerate(value):
            if (found := _lone_surrogate(child, f"{path}[{n}]")) is not None:
                return found
    if isinstance(value, dict):
        for key, child in value.items():
            if _is_broken(key):
                return path
            if (found := _lone_surrogate(child, f"{path}.{key}")) is not None:
                return found
    return None


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
