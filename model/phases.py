"""Which phase the engine is in: for traces, which show where the time of a batch went."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

OnPhase = Callable[[str, float], None]
"""Called with the name of a phase and the seconds that a part of it took: ``prefill``, ``extend``, ``serial``,
``packed`` or ``heads``. A device may still compute a step when it is the next one's turn, so the parts are coarse."""


@contextmanager
def timed(phase: str, on_phase: OnPhase | None) -> Iterator[None]:
    """Tell how long a part of a phase takes."""
    started = time.perf_counter()
    yield
    if on_phase is not None:
        on_phase(phase, time.perf_counter() - started)


def watched(items: Iterator[T], phase: Callable[[T | None], str], on_phase: OnPhase | None) -> Iterator[T]:
    """Yield the same items, and tell how long each took to compute. phase: of an item; of the end, None."""
    if on_phase is None:
        yield from items
        return
    while True:
        started = time.perf_counter()
        item = next(items, None)
        on_phase(phase(item), time.perf_counter() - started)
        if item is None:
            return
        yield item
