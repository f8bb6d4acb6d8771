"""The price of labels of several tokens counts what is computed for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from scoring.layout import Continuations, Rows
from scoring.planning.cut import cut
from scoring.planning.folds import work
from scoring.planning.lengths import GroupLengths, LabelLengths
from scoring.planning.planner import Planner
from scoring.work import REFERENCE, chunk_of, work_of_each_row
from tests.scoring.planning.test_planner import ESTIMATOR, INVARIANT

PLANNER = Planner(INVARIANT, ESTIMATOR)
PREFIXES = (64, 70, 255, 500, 1_000, 2_000, 4_000, 16_000)
ITEMS = (2, 10, 40, 100, 160, 200, 256, 300, 800, 4_000)
TARGETS = (2, 3, 5, 12, 30, 100)


def price(rows: Rows, targets: Sequence[int], kept: int) -> int:
    """The price of a label of each of these lengths behind the one item."""
    continuations = Continuations.pack([[1] * one for one in targets], [kept] * len(targets))
    return chunk_of(0, rows, continuations).work


def has_branch(planner: Planner, prefix: int, item: int, targets: int) -> bool:
    labels = LabelLengths(np.array([0]), np.array([prefix + item], np.int32), np.array([targets], np.int32))
    lengths = GroupLengths(prefix, np.array([item], np.int32), np.array([prefix], np.int32), labels=labels)
    return len(cut(planner, lengths).branches) > 0


def test_the_price_is_mostly_of_the_way_that_a_cpu_takes() -> None:
    """A worker decides by the rates of its hardware, and the price must not depend on the worker."""
    shapes = list(product(PREFIXES, ITEMS, TARGETS))
    same = [has_branch(PLANNER, *shape) is has_branch(REFERENCE, *shape) for shape in shapes]
    assert np.mean(same) > 0.9
    assert {has_branch(REFERENCE, *shape) for shape in shapes} == {False, True}


@pytest.mark.parametrize(("prefix", "item", "targets", "branch"), [(2_000, 20, 5, False), (2_000, 800, 4, True)])
def test_items_are_priced_once_for_all_of_their_labels(prefix: int, item: int, targets: int, branch: bool) -> None:
    assert has_branch(REFERENCE, prefix, item, targets) is branch
    behind = float(prefix + item if branch else prefix)
    expected = work(float(prefix), float(item)) + 4 * work(behind, float(targets - 1))
    assert price(Rows.pack([[1] * item], [prefix]), [targets] * 4, prefix + item) == round(expected)


def test_another_label_of_one_token_is_free_and_others_cost_their_own_tokens() -> None:
    rows = Rows.pack([[1] * 20], [100])

    def of(*targets: int) -> int:
        return price(rows, targets, 120)

    assert of(1, 1, 1) == of(1) == chunk_of(0, rows).work
    assert of(5, 9) == pytest.approx(of(5) + work(100.0, 8.0), abs=2)
    assert of(1, 5, 9) == pytest.approx(of(1) + of(5, 9), abs=2)
    assert of(5) == pytest.approx(of(5, 1) - of(1), abs=2)


def test_labels_that_do_not_fit_into_a_step_together_are_priced_with_more_rows() -> None:
    step = REFERENCE.estimator.shapes.step_tokens
    assert (step - 200) // 14 == 4
    continuations = Continuations.pack([[1] * 15] * 10, [300] * 10)
    found = work_of_each_row(Rows.pack([[1] * 200], [100]), continuations, 100)
    assert found == pytest.approx(3 * work(100.0, 200.0) + 10 * work(100.0, 14.0))


def test_a_label_that_merges_with_the_query_costs_the_token_that_is_computed_again() -> None:
    continuations = Continuations.pack([[1]] * 50, [99] * 50)
    assert chunk_of(0, Rows.pack([[]], [100]), continuations).work == round(50 * work(98.0, 1.0))
