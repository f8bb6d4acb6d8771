"""Reading an object of the client out of the JSON of an answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def read_fields(kind: type[T], raw: Mapping[str, Any], /, *, optional: Collection[str] = (), **others: Any) -> T:
    """Return an object whose fields are those of the same names in an answer, and which has the answer as ``raw``.

    optional: fields that the answer may lack; then they are None. others: fields that are read in another way.
    """
    make: Callable[..., T] = kind
    same = [name for name in kind.__annotations__ if name not in others and name not in optional and name != "raw"]
    taken = {name: raw[name] for name in same} | {name: raw.get(name) for name in optional}
    return make(**taken, **others, raw=raw)
