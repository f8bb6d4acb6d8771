"""Random groups of all shapes: empty, short and long items, and boundaries between prefix and item that merge."""

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
SHORT_ITEM = 8
STEP = 64
"""Tokens of a step of the engines under test, and of a block of their prefixes."""


@dataclass(frozen=True)
class Item:
    """An item's tokens, and the number of the prefix's last tokens that it does not see."""

    tokens: tuple[int, ...]
    short_by: int = 0


@dataclass(frozen=True)
class Group:
    """A prefix and items."""

    prefix: tuple[int, ...]
    items: tuple[Item, ...]

    def work(self, owner: str, id: int, head: Head = Head.LOGPROBS) -> GroupWork:
        """The group as the engine takes it, in one chunk."""
        ends = [max(1, len(self.prefix) - item.short_by) for item in self.items]
        rows = Rows.pack([item.tokens for item in self.items], ends)
        prefix = np.array(self.prefix, np.int32)
        return GroupWork(owner, prefix, (ChunkWork(id, rows, LABELS, head),))

    def with_items(self, items: Sequence[Item]) -> Group:
        return replace(self, items=tuple(items))


def _of_length(length: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.RandomState(seed).randint(0, VOCABULARY, length).tolist())


def long(*lengths: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Random tokens, of a length near one where the engine works differently."""
    return st.builds(_of_length, st.sampled_from(lengths), st.integers(0, 99))


tokens = st.integers(0, VOCABULARY - 1)
items = st.builds(
    Item,
    st.one_of(
        st.just(()),
        st.tuples(tokens),
        st.lists(tokens, max_size=SHORT_ITEM).map(tuple),
        long(9, 16, 17, 33, STEP, STEP + 1, 2 * STEP + 3),
    ),
    st.sampled_from([0, 0, 0, 1, 2]),
)
groups = st.builds(
    Group,
    st.one_of(
        st.lists(tokens, min_size=1, max_size=LONGEST_PREFIX).map(tuple),
        long(STEP - 1, STEP, STEP + 1, 2 * STEP + 5),
    ),
    st.lists(items, min_size=1, max_size=5).map(tuple),
)
several_groups = st.lists(groups, min_size=1, max_size=4)
