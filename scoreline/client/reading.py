"""Reading an object of the client out of the JSON of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, TypeVar

T = TypeVar("T")


def read_fields(kind: type[T], raw: Mapping[str, Any], /, *, optional: Set[str] = frozenset(), **others: Any) -> T:
    """Return an object whose fields are those of the same names in an answer; ``raw``, if it has that, is the answer.

    optional: fields that the answer may lack; then they are None. others: fields that are read in another way.
    """
    make: Callable[..., T] = kind
    given = {**raw, **dict.fromkeys(optional - raw.keys()), **others, "raw": raw}
    return make(**{name: given[name] for name in kind.__annotations__})
