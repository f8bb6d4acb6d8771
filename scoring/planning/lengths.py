"""The lengths of a group: all that planning, prices and forecasts know of it.

A sequence that is scored is a path: the query, an item, and the tokens of a label. Its targets are read one token
before each. A label of one token is read at the item's end, and needs no tokens of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from scoring.layout import Continuations, Rows, TokenIds

Indices = npt.NDArray[np.int64]

MOST_KEYS = 2**62
"""Rows of a table are told apart by 64-bit numbers, which must not overflow."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelLengths:
    """The lengths of L labels behind the items of a group, in tokens."""

    items: Indices  # which item each is behind, [L], ascending
    kept: TokenIds  # tokens of query and item that it keeps, int32 [L]
    targets: TokenIds  # its own tokens, whose probabilities are wanted, int32 [L]

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True, eq=False)
class GroupLengths:
    """The lengths of a group of N items behind one query, in tokens."""

    prefix: int
    lengths: TokenIds  # of the items' own tokens, int32 [N]
    prefix_ends: TokenIds  # the part of the prefix that each item sees, int32 [N]
    cached: bool = False  # the prefix is in the cache
    labels: LabelLengths | None = None  # None: each item is read at its end alone, for any number of labels

    @classmethod
    def of(cls, prefix: int, parts: Sequence[tuple[Rows, Continuations | None]], *, cached: bool = False) -> Self:
        """Return the lengths of chunks, all of which have continuations, or none of which has."""
        lengths = np.concatenate([rows.lengths for rows, _ in parts]) if parts else np.zeros(0, np.int32)
        ends = np.concatenate([rows.prefix_ends for rows, _ in parts]) if parts else np.zeros(0, np.int32)
        labels = [one for _, one in parts if one is not None]
        if not labels:
            return cls(prefix, lengths, ends, cached)
        of_each = [
            np.full(len(rows), len(one) // max(1, len(rows))) for (rows, _), one in zip(parts, labels, strict=True)
        ]
        items = np.repeat(np.arange(len(lengths)), np.concatenate(of_each))
        kept, targets = ([part.kept for part in labels], [part.lengths for part in labels])
        return cls(prefix, lengths, ends, cached, LabelLengths(items, np.concatenate(kept), np.concatenate(targets)))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def packed_tokens(self) -> int:
        """Tokens of the prefix and all items."""
        return self.prefix + int(self.lengths.sum())

    def only(self, items: Indices) -> GroupLengths:
        """Return the group with some of its items alone, and without labels of several tokens."""
        return replace(self, lengths=self.lengths[items], prefix_ends=self.prefix_ends[items], labels=None)


def distinct(*columns: npt.NDArray[np.integer[Any]]) -> tuple[Indices, Indices]:
    """Return the distinct rows of a table, in ascending order, as columns, and which of them each row is.

    columns: non-negative integers. NumPy sorts rows slowly and copies them, so each row becomes one number.
    """
    keys, most = np.zeros(len(columns[0]), np.int64), 0
    for column in columns:
        values = int(column.max(initial=0)) + 1
        if (most + 1) * values > MOST_KEYS:
            found, keys = np.unique(keys, return_inverse=True)
            most = len(found)
        keys *= values
        keys += column
        most = most * values + values - 1
    _, firsts, kind_of = np.unique(keys, return_index=True, return_inverse=True)
    return np.stack([column[firsts] for column in columns]).astype(np.int64), kind_of
