"""Parse strict JSON: reject what Python's parser accepts although JSON, or this service, does not allow it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.quoting import quote_name
from scoring.values import is_encodable

MAX_DEPTH = 64
"""The deepest nesting of lists and objects that is accepted; a scoring request needs three levels."""

MAX_CONTAINERS = 2**16
"""The most lists and objects of a line. Parsing so many holds the interpreter's lock for 30 ms at most."""

_QUOTED_CHARACTERS = 200
"""The most characters of a path that a message quotes, because a path consists of the client's keys."""

_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
_CONTAINERS = frozenset({list, dict})
_NO_MARKS = bytes(set(range(256)) - set(b'"[{'))
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class _RefusedError(ValueError):
    """The text holds something that Python's parser accepts and this service does not."""


def parse_json(data: bytes, what: str = "the body", place: str = "") -> object:
    """Return the value of JSON in UTF-8.

    what: the name of the text in messages. place: the path of the value in the request, if it is a part of one.

    Raises :class:`RequestError`: ``invalid_json`` if it is not JSON, ``invalid_request`` for NaN, infinities
    (``1e999`` too), lone surrogates, integers of thousands of digits, a name twice in an object and nesting past
    :data:`MAX_DEPTH`.
    """
    try:
        value = _DECODER.decode(data.decode())
        _check_depth(value)
    except json.JSONDecodeError as error:
        # The message for a single line names no line number, since that line may be one of an upload.
        reason = str(error) if b"\n" in data else f"{error.msg} (char {error.pos})"
        raise RequestError(ErrorCode.INVALID_JSON, f"{what} is not valid JSON: {reason}", param=place or None) from None
    except UnicodeDecodeError as error:
        raise RequestError(ErrorCode.INVALID_JSON, f"{what} is not valid JSON: {error}", param=place or None) from None
    except RecursionError:
        raise invalid(f"{what} {_TOO_DEEP}", place or None) from None
    except _RefusedError as error:
        raise invalid(f"{what} {error}", place or None) from None
    except ValueError:  # Python limits integers to 4,300 digits, because parsing takes quadratic time.
        message = f"{what} holds an integer with too many digits"
        raise invalid(message, place or None) from None
    # Only an escape can produce a lone surrogate in a decoded body, so most bodies need no search.
    if _SURROGATE_ESCAPE.search(data) and (path := _path_of_lone_surrogate(value, place)) is not None:
        raise invalid(f"{path or what} holds a lone surrogate, which is not valid Unicode text", path or None)
    return value


def check_containers(line: bytes, what: str, place: str = "") -> None:
    """Raise RequestError INVALID_REQUEST for a line with more than :data:`MAX_CONTAINERS` lists and objects.

    They cost a hundred times more than text of the same length, and neither a job without items nor an item has many.
    """
    if line.count(b"[") + line.count(b"{") <= MAX_CONTAINERS:
        return
    # The brackets may be in texts. What is left of a line here is its quotation marks and brackets.
    marks = line.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NO_MARKS).replace(b'""', b"")
    if sum(map(len, marks.split(b'"')[::2])) > MAX_CONTAINERS:
        raise invalid(f"{what} holds more than {MAX_CONTAINERS} lists and objects", place or None)


def _refuse_constant(name: str) -> NoReturn:
    raise _RefusedError(f"holds {name}, which is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _RefusedError("holds a number too large for a double")
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Python's parser keeps the last value of a name that stands twice, and tells nobody."""
    value = dict(pairs)
    if len(value) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _RefusedError(f"holds the name {quote_name(name)} twice in an object")
    return value


# Made once, because a job of a million lines causes a million calls.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_without_doubles)


def _check_depth(value: object) -> None:
    level: list[Any] = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if type(child) in _CONTAINERS
        ]
        if not level:
            return
    raise _RefusedError(_TOO_DEEP)


def _path_of_lone_surrogate(value: object, place: str) -> str | None:
    """Return the path of the first string with a lone surrogate, or None. The path of a key is that of its object."""
    steps = _steps_to_lone_surrogate(value)
    return None if steps is None else "".join([place, *reversed(steps)]).removeprefix(".")[:_QUOTED_CHARACTERS]


def _steps_to_lone_surrogate(value: object) -> list[str] | None:
    """Return the steps of that path, the last one first. A step is made only behind a string that was found."""
    if isinstance(value, str):
        return None if is_encodable(value) else []
    if isinstance(value, list):
        for n, child in enumerate(value):
            if (steps := _steps_to_lone_surrogate(child)) is not None:
                return [*steps, f"[{n}]"]
    if isinstance(value, dict):
        for key, child in value.items():
            if not is_encodable(key):
                return []
            if (steps := _steps_to_lone_surrogate(child)) is not None:
                return [*steps, f".{key[:_QUOTED_CHARACTERS]}"]
    return None
