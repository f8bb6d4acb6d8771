"""What streams show of something that goes on: its progress, and its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from api.answers.presentation import encode
from jobs.file_batches.reading import BatchProgress
from jobs.queue.read import Progress

P = TypeVar("P", Progress, BatchProgress)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ShownState(Generic[P]):
    """A job or a batch as streams show it."""

    progress: P
    shown: bytes  # the progress, encoded
    end: bytes | None  # the whole object, encoded, once it has ended

    @property
    def tenant(self) -> str:
        return self.progress.tenant

    @property
    def is_final(self) -> bool:
        return self.end is not None


def shown_states(
    found: Mapping[str, P],
    read_ended: Callable[[Collection[str]], Mapping[str, R]],
    show_progress: Callable[[P], object],
    show_end: Callable[[R], object],
) -> dict[str, ShownState[P]]:
    """Return the states of jobs or batches by id.

    found: their progress by id. read_ended: reads those that have ended; it is called at most once, and what it leaves
    out was removed since its progress was read, so it counts as missing.
    """
    ended = [key for key, progress in found.items() if progress.status.ended]
    records = read_ended(ended) if ended else {}
    return {
        key: ShownState(one, encode(show_progress(one)), encode(show_end(records[key])) if one.status.ended else None)
        for key, one in found.items()
        if key in records or not one.status.ended
    }
