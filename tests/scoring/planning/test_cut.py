"""How a group is cut, and what must not change how."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring.planning import cut as cutting
from scoring.planning.algorithms import Policy
from scoring.planning.cut import Cut, cut, together_in_rows
from scoring.planning.estimates import Shapes
from scoring.planning.folds import estimate
from scoring.planning.lengths import GroupLengths, LabelLengths, distinct
from scoring.planning.planner import Planner
from tests.scoring.planning.test_planner import ESTIMATOR, FREE, INVARIANT

PLANNER = Planner(INVARIANT, ESTIMATOR)
SHAPES = {"short": ((2_000, 20, 5, 4), False), "long": ((2_000, 800, 4, 10), True)}
"""Tokens of a query, an item and a label, and how many labels the item has; and whether a branch is the cheaper way."""

Item = tuple[int, list[tuple[int, int]]]
"""The own tokens of an item; of each label, how many of the last tokens before it it does not keep, and its targets."""

labels = st.tuples(st.sampled_from([0, 0, 0, 1, 2, 7]), st.integers(0, 60))
items = st.tuples(st.one_of(st.integers(0, 40), st.integers(41, 900)), st.lists(labels, min_size=1, max_size=6))
prefixes = st.one_of(st.integers(1, 100), st.integers(100, 3_000))


def cut_of(planner: Planner, prefix: int, of_items: list[Item], *, cached: bool = False) -> Cut:
    """Cut items that all see the whole query."""
    rows = np.array([n for n, (_, of_item) in enumerate(of_items) for _ in of_item], np.int64)
    kept = np.array([max(1, prefix + own - less) for own, of_item in of_items for less, _ in of_item], np.int32)
    targets = np.array([count for _, of_item in of_items for _, count in of_item], np.int32)
    lengths = np.array([own for own, _ in of_items], np.int32)
    ends = np.full(len(of_items), prefix, np.int32)
    return cut(planner, GroupLengths(prefix, lengths, ends, cached, LabelLengths(rows, kept, targets)))


def ways(made: Cut) -> list[tuple[object, ...]]:
    """What is done for each label, without what depends on which other labels share its row."""
    found, rows, branches = list[tuple[object, ...]](), made.rows, made.branches
    for first, tail in zip(made.first_reads.tolist(), made.tail_rows.tolist(), strict=True):
        way = list[object]()
        if 0 <= first < len(rows):
            way += [int(rows.begins[first]), int(rows.ends[first])]
        elif first >= 0:
            branch = first - len(rows)
            way += ["branch", int(branches.begins[branch]), int(branches.ends[branch])]
        if tail >= 0:
            way += [int(rows.begins[tail]), bool(rows.shares[tail]), int(rows.branches[tail]) >= 0]
        found.append(tuple(way))
    return found


@given(prefix=prefixes, of_items=st.lists(items, min_size=1, max_size=4), cached=st.booleans())
def test_with_batch_invariance_a_way_depends_on_query_item_and_that_label_alone(
    prefix: int, of_items: list[Item], cached: bool
) -> None:
    together = iter(ways(cut_of(PLANNER, prefix, of_items, cached=cached)))
    step = ESTIMATOR.shapes.step_tokens
    for own, of_item in of_items:
        for label in of_item:
            found, (alone,) = next(together), ways(cut_of(PLANNER, prefix, [(own, [label])]))
            # What is read at the end of a long item is read at the end of its branch, which has the same bits.
            if label == (0, 1) and own > step - prefix * (prefix < INVARIANT.min_prefix_tokens):
                found, alone = found[-1:], alone[-1:]
            assert found == alone


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("policy", [INVARIANT, FREE])
def test_labels_of_short_items_are_in_rows_and_those_of_long_items_behind_branches(name: str, policy: Policy) -> None:
    (prefix, item, targets, count), branches = SHAPES[name]
    made = cut_of(replace(PLANNER, policy=policy), prefix, [(item, [(0, targets)] * count)])
    assert len(made.branches) == branches


@pytest.mark.parametrize("name", SHAPES)
def test_the_way_that_is_chosen_is_estimated_to_take_less_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (prefix, item, targets, count), branches = SHAPES[name]
    seconds = []
    for way in (branches, not branches):
        monkeypatch.setattr(cutting, "_are_branches", lambda _, begins, *__, way=way: np.full(len(begins), way))
        made = cut_of(PLANNER, prefix, [(item, [(0, targets)] * count)] * 20, cached=True)
        seconds.append(estimate(ESTIMATOR, made).seconds)
    assert seconds[0] < seconds[1]


def test_without_batch_invariance_the_number_of_labels_decides() -> None:
    planner = replace(PLANNER, policy=FREE)
    few, many = (cut_of(planner, 2_000, [(250, [(0, 5)] * count)]) for count in (1, 40))
    assert (len(few.branches), len(many.branches)) == (0, 1)


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


@given(
    own=st.integers(1, 60),
    tail=st.integers(1, 30),
    count=st.integers(1, 30),
    slot_tokens=st.sampled_from([0, 128, 256]),
)
def test_rows_that_labels_share_are_estimated_as_they_are_cut(
    own: int, tail: int, count: int, slot_tokens: int
) -> None:
    shapes = replace(ESTIMATOR.shapes, step_sizes=(64,), slot_tokens=slot_tokens)
    if own + tail > 64:
        return
    planner = replace(PLANNER, estimator=replace(ESTIMATOR, shapes=shapes))
    one = [np.array([value]) for value in (100, own, tail, count)]
    found = cutting._in_shared_rows(planner, *one)
    sizes = np.array([size for _, size in together_in_rows(own, [tail] * count, shapes)])
    expected = planner.estimator.row(sizes, np.full(len(sizes), 100)).sum()
    assert found.sum().seconds == pytest.approx(expected.seconds)


def test_what_is_read_where_the_item_ends_needs_nothing_of_its_own() -> None:
    made = cut_of(PLANNER, 100, [(20, [(0, 1), (0, 0), (1, 1)]), (0, [(0, 1), (0, 3)])])
    assert ways(made) == [(100, 120), (), (100, 119), (100, 100), (100, 100, 100, False, False)]
    assert made.first_reads[3] == made.first_reads[4]


def test_packed_sequences_are_not_read_at_several_tokens() -> None:
    planner = replace(PLANNER, policy=replace(INVARIANT, algorithm="packed", max_packed_tokens=1_000))
    (choice,) = cut_of(planner, 100, [(20, [(0, 3)])]).choices
    assert choice.fallback


@given(
    table=st.integers(1, 5).flatmap(
        lambda columns: st.lists(
            st.lists(st.sampled_from([0, 1, 2, 300, 2**20, 2**31 - 1]), min_size=columns, max_size=columns), min_size=1
        )
    )
)
def test_the_kinds_of_a_table_are_its_distinct_rows_whatever_their_size(table: list[list[int]]) -> None:
    rows = np.array(table, np.int64)
    columns, kind_of = distinct(*rows.T)
    kinds = columns.T.tolist()
    assert kinds == sorted({tuple(row): row for row in table}.values())
    assert [kinds[kind] for kind in kind_of.tolist()] == table


def test_many_labels_are_cut_in_little_memory() -> None:
    """A dry run cuts all labels of a job at once, of which there may be ten million."""
    items, of_each = 2_000, 100
    own = np.random.default_rng(0).integers(5, 400, items).astype(np.int32)
    lengths = np.full(items * of_each, 4, np.int32)
    many = LabelLengths(np.repeat(np.arange(items), of_each), np.repeat(own + 500, of_each), lengths)
    group = GroupLengths(500, own, np.full(items, 500, np.int32), labels=many)
    tracemalloc.start()
    try:
        cut(PLANNER, group)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / len(lengths) < 200, "bytes for each label"
