"""Values of a request: the rules for texts, token ids, flags and names that several fields share."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

from scoring.error_codes import invalid

Choice = TypeVar("Choice", bound=StrEnum)


def check_text(text: str, param: str) -> None:
    """Raise :class:`RequestError` for text with a lone surrogate, which can't be encoded as UTF-8."""
    if not is_encodable(text):
        raise invalid(f"{param} holds a lone surrogate, which is not valid Unicode text", param)


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8, as one with a lone surrogate can't."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_ids(values: list[object], where: str) -> None:
    """Raise :class:`RequestError` unless all values are of type int. JSON's ``true`` and ``2.0`` are no token ids."""
    if set(map(type, values)) <= {int}:
        return
    n = next(n for n, value in enumerate(values) if type(value) is not int)
    raise invalid(f"{where}[{n}] must be an integer token id", f"{where}[{n}]")


def parse_flag(value: object, name: str) -> bool:
    """Return a flag, which is false where it is null or absent. Raises :class:`RequestError`."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(f"{name} must be true or false", name)
    return value


def parse_choice(value: object, name: str, allowed: Sequence[Choice]) -> Choice:
    """Return the value of a field that has one of these values, of which the first one is the default."""
    if value is None:
        return allowed[0]
    found = [one for one in allowed if one == value]
    if not isinstance(value, str) or not found:
        raise invalid(f"{name} must be one of {', '.join(allowed)}", name)
    return found[0]
