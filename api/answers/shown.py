"""An answer from its shape and from what is stored: the fields of a shape are the attributes of a record."""

from __future__ import annotations

import functools
import math
from typing import Any, get_args

from api.answers.items.result_schemas import Shape

_REQUIRED = object()


def shown(shape: type[Shape], record: object, **made: Any) -> dict[str, Any]:
    """Return the answer of a shape about a record. Times have milliseconds, or whole seconds where the shape says so.

    made: fields that are not what the record has under their names. A field that is neither made nor in the record has
    its default, and is left out if that is null. Raises AttributeError if it has none.
    """
    found: dict[str, Any] = {}
    for name, is_whole, default in _fields_of(shape):
        if name in made:
            found[name] = made[name]
            continue
        value = getattr(record, name) if default is _REQUIRED else getattr(record, name, default)
        if isinstance(value, float):
            value = math.floor(value) if is_whole else round(value, 3)
        if default is not None or value is not None:
            found[name] = value
    return found


@functools.cache
def _fields_of(shape: type[Shape]) -> list[tuple[str, bool, object]]:
    """Return the name of each field, whether it is a whole number, and its default."""
    return [
        (
            name,
            int in (field.annotation, *get_args(field.annotation)),
            _REQUIRED if field.is_required() else field.get_default(),
        )
        for name, field in shape.model_fields.items()
    ]
