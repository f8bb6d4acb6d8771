"""The orders in which options are asked give each option each place equally often."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring.decisions.answers import Agreement, _mean
from scoring.decisions.orders import BALANCED, MOST_ORDERS, orders_of, parse_permute
from scoring.error_codes import RequestError


@given(st.integers(1, MOST_ORDERS))
def test_balanced_orders_have_each_option_once_in_each_place(options: int) -> None:
    orders = orders_of(options, None, "questions.a")
    assert orders[0] == tuple(range(options))
    assert len(orders) == options
    assert all(sorted(places) == list(range(options)) for places in zip(*orders, strict=True))


@pytest.mark.parametrize("options", [2, 4, 6, 12])
def test_in_balanced_orders_of_an_even_number_each_option_follows_each_other_once(options: int) -> None:
    pairs = Counter(pair for order in orders_of(options, None, "a") for pair in pairwise(order))
    assert len(pairs) == options * (options - 1)
    assert set(pairs.values()) == {1}


@given(st.integers(1, 255), st.integers(2, MOST_ORDERS))
def test_so_many_orders_as_are_asked_for_differ_and_begin_with_that_of_the_request(options: int, wanted: int) -> None:
    orders = orders_of(options, wanted, "a")
    assert orders[0] == tuple(range(options))
    assert all(sorted(order) == list(range(options)) for order in orders)
    assert len(set(orders)) == len(orders) == min(wanted, math.factorial(min(options, 5)))
    assert orders == orders_of(options, wanted, "a")


@given(st.integers(2, 12), st.integers(1, 2))
def test_no_place_has_an_option_much_more_often_than_another(options: int, blocks: int) -> None:
    orders = orders_of(options, options * blocks, "a")
    if len(orders) == options * blocks and options > 4:
        assert all(max(Counter(places).values()) <= blocks + 1 for places in zip(*orders, strict=True))


@pytest.mark.parametrize("value", [1, 0, 25, True, 2.0, "all", [], {}])
def test_what_asks_for_no_number_of_orders_is_refused(value: object) -> None:
    with pytest.raises(RequestError, match="permute must be"):
        parse_permute(value)


def test_a_block_of_too_many_options_is_refused() -> None:
    assert parse_permute(BALANCED) is None
    with pytest.raises(RequestError, match=r"questions\.a has 25 options"):
        orders_of(25, None, "questions.a")


def test_the_mean_of_orders_is_geometric_and_survives_impossible_options() -> None:
    assert _mean(np.array([[0.8, 0.2], [0.2, 0.8]])) == pytest.approx([0.5, 0.5])
    assert _mean(np.array([[0.9, 0.1], [0.5, 0.5]])) == pytest.approx([0.75, 0.25])
    assert _mean(np.array([[1.0, 0.0], [0.5, 0.5]])) == [1.0, 0.0]
    assert _mean(np.array([[1.0, 0.0], [0.0, 1.0]])) == [0.5, 0.5]
    assert _mean(np.zeros((3, 2))) == [0.0, 0.0]


def test_spread_and_flips_compare_the_orders() -> None:
    shares = np.array([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]])
    found = Agreement.of(shares, [0.7, 0.3])
    assert found.orders == 3
    assert [found.spread, found.flips] == pytest.approx([0.5, 1 / 3])
