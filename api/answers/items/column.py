"""A value of each item, as answers show it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A value of each of N items: a number or a text, or a list of them."""

    values: npt.NDArray[Any]  # [N], or [N, M] for lists; or [T] if the lists lie end to end
    shown: npt.NDArray[np.int32] | None = None  # [N]: how many of the M numbers of each item are shown; None: all
    ends: npt.NDArray[np.int64] | None = None  # [N + 1]: of lists that lie end to end: where each begins and ends

    def __len__(self) -> int:
        return len(self.values) if self.ends is None else len(self.ends) - 1

    @property
    def most_values(self) -> int:
        """The most numbers of an item."""
        if self.ends is not None:
            return int(np.diff(self.ends).max(initial=0))
        return self.values.shape[1] if self.values.ndim > 1 else 1

    def first(self, items: int) -> Column:
        shown, ends = self.shown, self.ends
        return Column(
            self.values[: items if ends is None else ends[items]],
            None if shown is None else shown[:items],
            None if ends is None else ends[: items + 1],
        )

    def part(self, part: slice) -> list[Any]:
        """Return the values of some items."""
        if self.ends is not None:
            ends = self.ends[part.start : part.stop + 1].tolist()
            return [self.values[start:stop].tolist() for start, stop in pairwise(ends)]
        rows: list[Any] = self.values[part].tolist()
        if self.shown is None:
            return rows
        return [row[:count] for row, count in zip(rows, self.shown[part].tolist(), strict=True)]
