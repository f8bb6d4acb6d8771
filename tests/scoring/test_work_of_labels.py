"""The work of labels of several tokens is what a worker computes for them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given

from model.score_buffer import TargetBuffer
from model.work.continuations import ContinuationRows, Item
from scoring.layout import Continuations, Rows
from scoring.planning.continuations import (
    ASSUMED_LABELS,
    ContinuationLengths,
    Way,
    plan_continuations,
)
from scoring.planning.estimates import GroupLengths, Shapes
from scoring.planning.planner import Planner
from scoring.work import SHORTEST_SHARED, STEP_SIZES, STEP_TOKENS, are_branches, work, work_of_each_row, work_of_rows
from tests.model.continuations.cases import Case, Label, cases
from tests.model.geometries import Item as ItemTokens
from tests.scoring.planning.test_planner import ESTIMATOR, INVARIANT

PLANNER = Planner(INVARIANT, ESTIMATOR)
PREFIXES = (10, 50, 63, 64, 70, 255, 500, 1_000, 2_000, 2_047, 4_000, 8_000, 16_000)
ITEMS = (2, 5, 10, 20, 40, 60, 80, 100, 130, 160, 200, 250, 256, 300, 500, 800, 2_000, 4_000)
TARGETS = (2, 3, 4, 5, 8, 12, 20, 30, 60, 100, 250)
CLOSE = 1.3
"""Where the planner's estimates of both ways differ by less than this factor, either is as good."""


def seconds(prefix: int, item: int, targets: int) -> tuple[float, float]:
    """What the planner estimates for rows, and for a branch."""
    begin, kept = (prefix if prefix >= 64 else 0), prefix + item
    rows = sum(ESTIMATOR.row(tokens, begin).seconds for tokens in row_tokens(kept - begin, targets - 1))
    branch = ESTIMATOR.beside(kept - begin, begin) + ESTIMATOR.behind(ASSUMED_LABELS * (targets - 1), kept)
    return rows, branch.seconds


def row_tokens(own: int, tail: int) -> list[int]:
    """The tokens of the rows of an item and its labels: as many labels share a row as a step has room for."""
    in_a_row = (STEP_TOKENS - own) // tail
    if in_a_row < 1:
        return [own + tail] * ASSUMED_LABELS
    counts = [min(in_a_row, ASSUMED_LABELS - done) for done in range(0, ASSUMED_LABELS, in_a_row)]
    return [own + count * tail for count in counts]


def planned(prefix: int, item: int, targets: int) -> Way:
    """The planner's way of a label behind an item."""
    group = GroupLengths(prefix, np.array([item], np.int32), np.array([prefix], np.int32))
    of_label = ContinuationLengths(np.array([0]), np.array([prefix + item], np.int32), np.array([targets], np.int32))
    return Way(int(plan_continuations(PLANNER, group, of_label).ways[0]))


def priced(prefix: int, item: int, targets: int) -> Way:
    """The way that the price of the same label is of."""
    found = are_branches(*(np.array(float(one)) for one in (prefix, prefix + item, targets)))
    return Way.BRANCH if found else Way.ROW


def test_the_price_is_of_the_way_that_the_planner_takes() -> None:
    ways = set()
    for lengths in product(PREFIXES, ITEMS, TARGETS):
        rows, branch = seconds(*lengths)
        assert planned(*lengths) is (Way.ROW if rows <= branch else Way.BRANCH), lengths
        if max(rows, branch) > CLOSE * min(rows, branch):
            assert priced(*lengths) is planned(*lengths), (lengths, rows, branch)
            ways.add(priced(*lengths))
    assert ways == {Way.ROW, Way.BRANCH}


@pytest.mark.parametrize(("lengths", "way"), [((2_000, 20, 5), Way.ROW), ((2_000, 800, 4), Way.BRANCH)])
def test_items_are_priced_once_for_all_of_their_labels(lengths: tuple[int, int, int], way: Way) -> None:
    assert priced(*lengths) is planned(*lengths) is way
    prefix, item, targets = lengths
    rows = Rows.pack([[1] * item], [prefix])
    continuations = Continuations.pack([[1] * targets] * 4, [prefix + item] * 4)
    expected = {
        Way.ROW: work(float(prefix), float(item)) + 4 * work(float(prefix), float(targets - 1)),
        Way.BRANCH: work(float(prefix), float(item)) + 4 * work(float(prefix + item), float(targets - 1)),
    }
    assert work_of_rows(rows, continuations) == round(expected[way])


def test_another_label_of_one_token_is_free_and_others_cost_their_own_tokens() -> None:
    rows = Rows.pack([[1] * 20], [100])

    def price(*targets: int) -> int:
        continuations = Continuations.pack([[1] * one for one in targets], [120] * len(targets))
        return work_of_rows(rows, continuations)

    assert price(1, 1, 1) == price(1) == work_of_rows(rows)
    assert price(5, 9) == pytest.approx(price(5) + work(100.0, 8.0), abs=2)
    assert price(1, 5, 9) == pytest.approx(price(1) + price(5, 9), abs=2)
    assert price(5) == pytest.approx(price(5, 1) - price(1), abs=2)


def test_labels_that_do_not_fit_into_a_step_together_are_priced_with_more_rows() -> None:
    rows = Rows.pack([[1] * 200], [100])
    continuations = Continuations.pack([[1] * 15] * 10, [300] * 10)
    assert (STEP_TOKENS - 200) // 14 == 4
    expected = 10 / 4 * work(100.0, 200.0) + 10 * work(100.0, 14.0)
    assert work_of_each_row(rows, continuations) == pytest.approx(expected)


def test_a_label_that_merges_with_the_query_costs_the_token_that_is_computed_again() -> None:
    labels = tuple(Label((number,), 1) for number in range(50))
    case = Case((1,) * 100, (ItemTokens(()),), (labels,))
    (chunk,) = case.work().chunks
    assert work_of_rows(chunk.rows, chunk.continuations) == round(50 * work(100.0, 1.0))
    assert_counted(case)


@given(case=cases())
def test_the_price_counts_the_tokens_that_are_computed(case: Case) -> None:
    assert_counted(case)


@pytest.mark.parametrize(
    ("length", "ways"),
    [
        (150, {Way.END, Way.ROW}),
        (STEP_TOKENS - 6, {Way.END, Way.ROW, Way.BRANCH}),
        (STEP_TOKENS + 1, {Way.END, Way.BRANCH}),
    ],
)
def test_the_price_of_a_long_item_with_labels_that_merge_counts_its_rows_and_branches(
    length: int, ways: set[Way]
) -> None:
    labels = tuple(Label((1,) * tokens, cut) for tokens, cut in ((5, 0), (4, 0), (1, 0), (6, 2), (3, 2), (8, 1)))
    case = Case((1,) * 300, (ItemTokens((2,) * length), ItemTokens((3,) * length)), (labels, labels))
    assert assert_counted(case) == ways


def assert_counted(case: Case) -> set[Way]:
    """Compare the price with what the engine would compute in the ways that the price is of; return these."""
    (chunk,) = case.work().chunks
    assert chunk.continuations is not None
    of_labels, prefix = chunk.continuations, case.work().prefix
    buffer = TargetBuffer.of(chunk, of_labels)
    made, stops = ContinuationRows(Shapes(STEP_SIZES, STEP_TOKENS, (), 128)), np.cumsum(of_labels.lengths).tolist()
    columns, ends = chunk.columns, np.cumsum(chunk.rows.lengths).tolist()
    found: set[Way] = set()
    expected = 0.0
    for n, (whole, begin) in enumerate(
        zip(chunk.rows.sequence_lengths.tolist(), chunk.rows.prefix_ends.tolist(), strict=True)
    ):
        own = chunk.rows.tokens[ends[n] - int(chunk.rows.lengths[n]) : ends[n]]
        ways: list[int] = [
            way_of(begin, kept, whole, targets)
            for kept, targets in zip(
                chunk.continuations.kept.tolist(), chunk.continuations.lengths.tolist(), strict=True
            )
        ]
        mine = slice(n * columns, (n + 1) * columns)
        found |= set(map(Way, ways[mine]))
        before = len(made.rows), len(made.branches)
        is_serial = begin < SHORTEST_SHARED
        made.add(Item(prefix, begin, own, buffer, is_serial), n * columns, (n + 1) * columns, ways, stops)
        shared = 0 if is_serial else begin
        # A row that begins within the query, for a label that keeps less than the query, computes its own tokens alone.
        of_rows = [(row.prefix_end if is_serial else 0) + len(row.tokens) for row in made.rows[before[0] :]]
        tokens = sum(work(float(shared), float(own)) for own in of_rows)
        for branch in made.branches[before[1] :]:
            tokens += work(float(shared), float(max(1, len(branch.tokens) - shared)))
            tokens += sum(work(float(len(branch.tokens)), float(len(row.tokens))) for row in branch.rows)
        expected += max(1.0, tokens)
    assert work_of_rows(chunk.rows, chunk.continuations) == pytest.approx(expected, rel=0.15, abs=3)
    return found


def way_of(begin: int, kept: int, whole: int, targets: int) -> Way:
    if not targets:
        return Way.NOTHING
    if targets == 1 and kept == whole:
        return Way.END
    return Way.BRANCH if are_branches(*(np.array(float(one)) for one in (begin, kept, targets))) else Way.ROW
