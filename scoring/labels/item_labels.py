"""Labels for each item: which of the labels of a request each item has, and in which order.

A request is scored with all labels that any of its items has. The answer for an item is picked from these scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scoring.layout import LabelScores

NO_LABEL = -1
"""Stands behind the labels of an item that has fewer of them than another one."""

_STORED = np.dtype("<i4")


@dataclass(frozen=True, slots=True, eq=False)
class ItemLabels:
    """The labels of N items."""

    counts: npt.NDArray[np.int32]  # [N]: how many labels each item has
    columns: npt.NDArray[np.int32]  # of all items, one after another: indices into the labels of the request

    @classmethod
    def collect(cls, lists: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ItemLabels]:
        """Return all labels that the items have, each once, in the order in which they come; and what each item has.

        lists: the labels of each item.
        """
        index: dict[int, int] = {}
        columns = [index.setdefault(label, len(index)) for labels in lists for label in labels]
        counts = np.fromiter(map(len, lists), np.int32, len(lists))
        return tuple(index), cls(counts, np.array(columns, np.int32))

    @property
    def nbytes(self) -> int:
        """How many bytes the arrays take."""
        return int(self.counts.nbytes + self.columns.nbytes)

    def __len__(self) -> int:
        return len(self.counts)

    def of(self, items: npt.NDArray[np.int64]) -> ItemLabels:
        """Return the labels of some items. items: their indices, int64 [n]."""
        ends = np.cumsum(self.counts, dtype=np.int64)
        pieces = [self.columns[ends[n] - self.counts[n] : ends[n]] for n in items.tolist()]
        return ItemLabels(self.counts[items], np.concatenate([np.zeros(0, np.int32), *pieces]))

    def table(self) -> npt.NDArray[np.int32]:
        """Return the columns of each item in a row of its own, int32 [N, most labels], filled with NO_LABEL."""
        places = np.arange(int(self.counts.max(initial=0)))
        table = np.full((len(self), len(places)), NO_LABEL, np.int32)
        table[places < self.counts[:, None]] = self.columns
        return table

    def pick(self, scores: LabelScores) -> LabelScores:
        """Return what each item has of the scores of N items: [N, most labels], filled with minus infinity."""
        table = self.table()

        def picked(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            return np.where(table == NO_LABEL, np.float32(-np.inf), np.take_along_axis(values, np.maximum(table, 0), 1))

        logprobs = None if scores.logprobs is None else picked(scores.logprobs)
        return LabelScores(picked(scores.logits), logprobs, scores.top_logprobs)

    def to_bytes(self) -> bytes:
        """Serialise as little-endian int32: N, then counts and columns."""
        parts = (np.array([len(self)], _STORED), self.counts, self.columns)
        return b"".join(np.ascontiguousarray(part, _STORED).tobytes() for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> ItemLabels:
        """Read what :meth:`to_bytes` wrote."""
        values = np.frombuffer(data, _STORED)
        n = int(values[0])
        return cls(values[1 : 1 + n], values[1 + n :])
