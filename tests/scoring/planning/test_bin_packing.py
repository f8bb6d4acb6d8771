"""Bin packing of items into steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring.planning.bin_packing import first_fit_decreasing

CAPACITY = 256


def bins(lengths: list[int], most: int = 64) -> list[list[int]]:
    return [found.tolist() for found in first_fit_decreasing(np.array(lengths, np.int32), CAPACITY, most)]


def by_the_book(lengths: list[int], most: int) -> list[list[int]]:
    """First fit decreasing in its textbook form: each item goes into the first bin with room for it."""
    found: list[list[int]] = []
    for item in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        for together in found:
            if len(together) < most and sum(lengths[other] for other in together) + lengths[item] <= CAPACITY:
                together.append(item)
                break
        else:
            found.append([item])
    return found


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([256], [[0]]),
        ([20, 20, 20], [[0, 1, 2]]),
        ([56, 130, 20, 200, 126, 30], [[3, 0], [1, 4], [5, 2]]),
        ([129, 129], [[0], [1]]),
    ],
)
def test_short_items_fill_what_long_ones_leave(lengths: list[int], expected: list[list[int]]) -> None:
    assert bins(lengths) == expected


def test_a_bin_has_a_limited_number_of_items() -> None:
    assert bins([1] * 10, most=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@given(lengths=st.lists(st.integers(1, CAPACITY), max_size=60), most=st.integers(1, 64))
def test_bins_are_those_of_first_fit_decreasing(lengths: list[int], most: int) -> None:
    assert bins(lengths, most) == by_the_book(lengths, most)
