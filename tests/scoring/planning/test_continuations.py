"""The ways in which labels share the work of their item, and what must not change them."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring.planning.continuations import (
    ContinuationLengths,
    Way,
    _kinds,
    estimate_continuations,
    plan_continuations,
    together_in_rows,
)
from scoring.planning.estimates import GroupLengths, Shapes
from scoring.planning.planner import Planner
from tests.scoring.planning.test_planner import ESTIMATOR, FREE, INVARIANT

PLANNER = Planner(INVARIANT, ESTIMATOR)
SHAPES = {"short": ((2_000, 20, 5, 4), Way.ROW), "long": ((2_000, 800, 4, 10), Way.BRANCH)}
"""Tokens of a query, an item and a label, and how many labels the item has; and the way that is the cheaper one."""

Item = tuple[int, list[tuple[int, int]]]
"""The own tokens of an item; of each label, how many of the last tokens before it it does not keep, and its targets."""

labels = st.tuples(st.sampled_from([0, 0, 0, 1, 2, 7]), st.integers(0, 60))
items = st.tuples(st.one_of(st.integers(0, 40), st.integers(41, 900)), st.lists(labels, min_size=1, max_size=6))
prefixes = st.one_of(st.integers(1, 100), st.integers(100, 3_000))


def ways(planner: Planner, prefix: int, of_items: list[Item]) -> list[list[int]]:
    """Return the ways of the labels of each item."""
    lengths = np.array([own for own, _ in of_items], np.int32)
    group = GroupLengths(prefix, lengths, np.full(len(of_items), prefix, np.int32))
    rows = [n for n, (_, of_item) in enumerate(of_items) for _ in of_item]
    kept = [max(1, prefix + own - cut) for own, of_item in of_items for cut, _ in of_item]
    targets = [count for _, of_item in of_items for _, count in of_item]
    found = plan_continuations(
        planner, group, ContinuationLengths(np.array(rows), np.array(kept, np.int32), np.array(targets, np.int32))
    ).ways.tolist()
    stops = np.cumsum([len(of_item) for _, of_item in of_items]).tolist()
    return [found[stop - len(of_item) : stop] for stop, (_, of_item) in zip(stops, of_items, strict=True)]


@given(prefix=prefixes, of_items=st.lists(items, min_size=1, max_size=4), cached=st.booleans())
def test_with_batch_invariance_a_way_depends_on_query_item_and_that_label_alone(
    prefix: int, of_items: list[Item], cached: bool
) -> None:
    for (own, of_item), found in zip(of_items, ways(PLANNER, prefix, of_items), strict=True):
        assert found == [ways(PLANNER, prefix, [(own, [label])])[0][0] for label in of_item]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("policy", [INVARIANT, FREE])
def test_labels_of_short_items_are_rows_and_those_of_long_items_branches(name: str, policy: object) -> None:
    (prefix, item, targets, count), way = SHAPES[name]
    planner = replace(PLANNER, policy=policy)  # type: ignore[arg-type]
    assert ways(planner, prefix, [(item, [(0, targets)] * count)]) == [[way] * count]


@pytest.mark.parametrize("name", SHAPES)
def test_the_way_that_is_chosen_is_estimated_to_take_less_time(name: str) -> None:
    (prefix, item, targets, count), way = SHAPES[name]
    group = GroupLengths(prefix, np.full(20, item, np.int32), np.full(20, prefix, np.int32), cached=True)
    of_labels = ContinuationLengths(
        np.repeat(np.arange(20), count),
        np.full(20 * count, prefix + item, np.int32),
        np.full(20 * count, targets, np.int32),
    )
    plan = plan_continuations(PLANNER, group, of_labels)
    seconds = {
        one: estimate_continuations(
            PLANNER, group, of_labels, replace(plan, ways=np.full(20 * count, one, np.int8))
        ).seconds
        for one in (Way.ROW, Way.BRANCH)
    }
    assert min(seconds, key=seconds.__getitem__) is way


def test_without_batch_invariance_the_number_of_labels_decides() -> None:
    planner = replace(PLANNER, policy=FREE)
    few, many = (ways(planner, 2_000, [(250, [(0, 5)] * count)])[0] for count in (1, 40))
    assert (set(few), set(many)) == ({Way.ROW}, {Way.BRANCH})


@pytest.mark.parametrize(
    ("slot_tokens", "expected"),
    [
        (0, [(list(range(11)), 64), ([11], 24)]),  # 20 + 11 x 4 tokens fit into a step of 64
        (128, [([0, 1, 2], 64), ([3, 4, 5], 64), ([6, 7, 8], 64), ([9, 10, 11], 64)]),  # four slots of 32
    ],
)
def test_as_many_labels_share_a_row_as_a_step_has_room_for(
    slot_tokens: int, expected: list[tuple[list[int], int]]
) -> None:
    shapes = Shapes((64,), 64, (), 128, slot_tokens=slot_tokens)
    assert list(together_in_rows(20, [4] * 12, shapes)) == expected


def test_what_is_read_where_the_item_ends_needs_no_way_of_its_own() -> None:
    assert ways(PLANNER, 100, [(20, [(0, 1), (0, 0), (1, 1)]), (0, [(0, 1), (0, 3)])]) == [
        [Way.END, Way.NOTHING, Way.ROW],
        [Way.END, Way.ROW],
    ]


@given(
    table=st.integers(1, 5).flatmap(
        lambda columns: st.lists(
            st.lists(st.sampled_from([0, 1, 2, 300, 2**20, 2**31 - 1]), min_size=columns, max_size=columns), min_size=1
        )
    )
)
def test_the_kinds_of_a_table_are_its_distinct_rows_whatever_their_size(table: list[list[int]]) -> None:
    rows = np.array(table, np.int64)
    kinds, kind_of = _kinds(*rows.T)
    assert kinds == sorted({tuple(row): row for row in table}.values())
    assert [kinds[kind] for kind in kind_of.tolist()] == table


def test_many_labels_are_planned_in_little_memory() -> None:
    """A dry run plans all labels of a job at once, of which there may be ten million."""
    items, of_each = 2_000, 100
    own = np.random.default_rng(0).integers(5, 400, items).astype(np.int32)
    group = GroupLengths(500, own, np.full(items, 500, np.int32))
    lengths = np.full(items * of_each, 4, np.int32)
    many = ContinuationLengths(np.repeat(np.arange(items), of_each), np.repeat(own + 500, of_each), lengths)
    tracemalloc.start()
    try:
        plan_continuations(PLANNER, group, many)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / len(lengths) < 100, "bytes for each label"
