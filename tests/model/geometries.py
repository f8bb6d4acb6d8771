"""Ragged work for the algorithms: several groups, empty and one-token items, boundaries that merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from scoring.layout import ChunkWork, GroupWork, Head, Rows

VOCABULARY = 90
"""Of the smallest checkpoint under test."""
LABELS = (3, 17, 41, 80)
LONGEST_PREFIX = 12
LONGEST_ITEM = 8


@dataclass(frozen=True)
class Item:
    """An item's tokens, and how many of the prefix's last tokens it does not see."""

    tokens: tuple[int, ...]
    short_by: int = 0


@dataclass(frozen=True)
class Group:
    """A prefix and items."""

    prefix: tuple[int, ...]
    items: tuple[Item, ...]

    def work(self, key: str, id: int, head: Head = Head.LOGPROBS) -> GroupWork:
        """As the engine takes it: one chunk."""
        ends = [max(1, len(self.prefix) - item.short_by) for item in self.items]
        rows = Rows.pack([item.tokens for item in self.items], ends)
        prefix = np.array(self.prefix, np.int32)
        return GroupWork(key, prefix, (ChunkWork(id, rows, LABELS, head),))

    def with_items(self, items: Sequence[Item]) -> Group:
        return replace(self, items=tuple(items))


tokens = st.integers(0, VOCABULARY - 1)
items = st.builds(
    Item,
    st.one_of(st.just(()), st.tuples(tokens), st.lists(tokens, max_size=LONGEST_ITEM).map(tuple)),
    st.sampled_from([0, 0, 0, 1, 2]),
)
groups = st.builds(
    Group,
    st.lists(tokens, min_size=1, max_size=LONGEST_PREFIX).map(tuple),
    st.lists(items, min_size=1, max_size=5).map(tuple),
)
several_groups = st.lists(groups, min_size=1, max_size=4)
