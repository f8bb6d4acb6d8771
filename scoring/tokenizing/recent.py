"""A cache of what was computed from an owner's short texts lately, so that a text that is sent again costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

MOST_ENTRIES = 256
MOST_CHARACTERS = 2**11
"""The most characters of a text that is kept. With its tokens it takes some ten kilobytes at most."""

T = TypeVar("T")


class Recent:
    """A bounded number of results, of which the one that was used longest ago is forgotten. Safe to use from threads.

    Owners share no result: by the time that an answer takes, nobody can tell what another one has sent.
    """

    def __init__(self) -> None:
        self._results: dict[Hashable, Any] = {}  # the one that was used last is the last
        self._lock = Lock()

    def result(self, owner: str | None, text: str, rest: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of ``compute`` for a text, computed now or lately. Errors of it are raised and not kept.

        owner: whose text it is; None: nothing is kept. rest: what else the result depends on.
        """
        if owner is None or len(text) > MOST_CHARACTERS:
            return compute()
        key = (owner, text, rest)
        with self._lock:
            found = self._results.pop(key, None)
            if found is not None:
                self._results[key] = found
                known: T = found
                return known
        computed = compute()
        with self._lock:
            self._results[key] = computed
            if len(self._results) > MOST_ENTRIES:
                del self._results[next(iter(self._results))]
        return computed

    def __len__(self) -> int:
        return len(self._results)

    def __reduce__(self) -> tuple[type[Recent], tuple[()]]:
        """Another process begins with nothing."""
        return Recent, ()
