"""Progress: callbacks, and a bar in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar


class _Progressing(Protocol):
    @property
    def total_items(self) -> int | None: ...
    @property
    def scored_items(self) -> int: ...


@dataclass(frozen=True, slots=True)
class MapProgress:
    """How far ``map`` has got."""

    pairs: int  # whose results, or errors, were returned
    failed_pairs: int  # those of them that have an error in place of a result
    items: int  # that were scored
    total_pairs: int | None  # None if the pairs come from an iterator, whose end nobody knows

    @property
    def total_items(self) -> int | None:
        """What a bar counts up to."""
        return self.total_pairs

    @property
    def scored_items(self) -> int:
        """What a bar counts."""
        return self.pairs


P = TypeVar("P", bound=_Progressing)


@contextmanager
def shown(callback: Callable[[P], object] | None, bar: str | None) -> Iterator[Callable[[P], object] | None]:
    """Return what to call with each state of something that progresses, or None if nobody wants to know.

    bar: the description of a bar on standard error; None: no bar.
    """
    if bar is None:
        yield callback
        return
    # These are imported where a bar is shown: everybody else need not wait for it.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(bar, total=None)

        def show(state: P) -> None:
            progress.update(task, total=state.total_items, completed=state.scored_items)
            if callback is not None:
                callback(state)

        yield show
