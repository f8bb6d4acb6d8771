"""The conversion of the engine's values to scores: ADR-001, and RFC-000 "Softmax as post-processing"."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scoring.conversion import label_mass, to_scores, warnings_of_scores
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import LabelScores

INF = math.inf
MATRIX = st.tuples(st.integers(0, 6), st.integers(1, 6))
LOGITS = hnp.arrays(np.float32, MATRIX, elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.just(-INF))


def logits(*rows: list[float]) -> LabelScores:
    return LabelScores(np.array(rows, np.float32), None)


def logprobs(*rows: list[float]) -> LabelScores:
    return LabelScores(np.zeros_like(rows, np.float32), np.array(rows, np.float32))


def adr_001(score_list: list[float]) -> list[float]:
    """The formula as written in ADR-001."""
    max_logprob = max(score_list)
    exp_scores = [math.exp(x - max_logprob) if x != float("-inf") else 0.0 for x in score_list]
    sum_exp = sum(exp_scores)
    return [x / sum_exp if sum_exp > 0 else 0.0 for x in exp_scores]


@given(LOGITS)
def test_adr_001_softmax_is_the_decisions_formula(values: np.ndarray) -> None:
    got = to_scores(LabelScores(values, None), True)
    expected = [adr_001(row) for row in values.astype(float).tolist()]
    np.testing.assert_allclose(got, np.reshape(expected, values.shape), rtol=1e-12, atol=0)


@given(LOGITS)
def test_adr_001_each_row_sums_to_one_or_is_all_zeros(values: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = to_scores(LabelScores(values, None), True)
    assert got.shape == values.shape
    assert got.dtype == np.float64
    for row, scores in zip(values, got, strict=True):
        total = 0.0 if np.isneginf(row).all() else 1.0
        assert scores.sum() == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([-INF, 0.0], [0.0, 1.0]),
        ([-INF, -INF], [0.0, 0.0]),
        ([-1000.0, -1000.0], [0.5, 0.5]),
        ([3e38, 3e38], [0.5, 0.5]),
        ([5.0], [1.0]),
        ([-INF], [0.0]),
        ([0.0, math.log(3.0)], [0.25, 0.75]),
    ],
)
def test_adr_001_edge_cases(row: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(to_scores(logits(row), True), [expected], rtol=1e-7)


def test_rfc_000_softmax_runs_over_the_labels_of_each_item_alone() -> None:
    together = to_scores(logits([1.0, 2.0, 3.0], [9.0, 0.0, 0.0]), True)
    np.testing.assert_array_equal(together[0], to_scores(logits([1.0, 2.0, 3.0]), True)[0])
    np.testing.assert_allclose(together.sum(axis=1), [1.0, 1.0])


def test_rfc_008_without_softmax_a_score_is_exp_of_the_log_probability() -> None:
    got = to_scores(logprobs([math.log(0.25), math.log(0.5), -INF, -800.0]), False)
    np.testing.assert_allclose(got, [[0.25, 0.5, 0.0, 0.0]], rtol=1e-6)
    assert got.sum() < 1.0


def test_a_probability_never_exceeds_one() -> None:
    assert to_scores(logprobs([1e-6]), False).tolist() == [[1.0]]


def test_scores_are_computed_in_float64() -> None:
    value = np.float32(-20.5)
    assert to_scores(logprobs([float(value)]), False)[0, 0] == math.exp(-20.5)


@pytest.mark.parametrize("apply_softmax", [True, False])
@pytest.mark.parametrize("bad", [math.nan, INF])
@pytest.mark.parametrize("where", ["logits", "logprobs"])
def test_nan_and_positive_infinity_are_errors_and_not_scores(bad: float, apply_softmax: bool, where: str) -> None:
    values = {"logits": np.zeros((2, 2), np.float32), "logprobs": np.zeros((2, 2), np.float32)}
    values[where][1, 0] = bad
    with pytest.raises(RequestError, match="NaN") as caught:
        to_scores(LabelScores(**values), apply_softmax)
    assert caught.value.code is ErrorCode.JOB_FAILED


def test_probabilities_need_log_probabilities() -> None:
    with pytest.raises(ValueError, match="log-probabilities"):
        to_scores(logits([1.0]), False)


@pytest.mark.parametrize("apply_softmax", [True, False])
def test_an_empty_list_of_items_has_no_scores(apply_softmax: bool) -> None:
    empty = np.zeros((0, 3), np.float32)
    assert to_scores(LabelScores(empty, empty), apply_softmax).shape == (0, 3)


def test_adr_001_conversion_does_not_import_the_accelerator_library() -> None:
    program = "import sys, scoring.conversion, scoring.prepare; assert not {'jax', 'flax', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_label_mass_is_the_share_of_the_labels_together() -> None:
    found = label_mass(logprobs([math.log(0.5), math.log(0.25)], [-INF, -INF], [1e-7, -INF]), [3, 8])
    assert found is not None
    np.testing.assert_allclose(found, [0.75, 0.0, 1.0], rtol=1e-6)
    assert found.max() <= 1


def test_a_label_that_is_named_twice_counts_once_in_the_label_mass() -> None:
    found = label_mass(logprobs([math.log(0.5), math.log(0.25), math.log(0.5)]), [3, 8, 3])
    assert found is not None
    np.testing.assert_allclose(found, [0.75], rtol=1e-6)


def test_there_is_no_label_mass_without_log_probabilities() -> None:
    assert label_mass(logits([0.0, 1.0]), [3, 8]) is None


@pytest.mark.parametrize(
    ("mass", "warned"),
    [
        ([0.09] + [0.9] * 9, "1 of 10 items, such as items[0]:"),
        ([0.9] * 10 + [0.09], None),
        ([0.9, 0.0, 0.01, 0.9, 0.02, 0.03], "4 of 6 items, such as items[1], items[2] and items[4]:"),
        ([0.1, 0.1], None),
        ([], None),
    ],
)
def test_a_tenth_of_items_with_a_small_label_mass_is_warned_of_with_examples(
    mass: list[float], warned: str | None
) -> None:
    found = warnings_of_scores(np.array(mass), np.zeros((len(mass), 2)))
    assert len(found) == (warned is not None)
    assert warned is None or f"together for {warned}" in found[0]


def test_a_label_that_is_never_the_most_probable_is_warned_of_from_a_hundred_items_on() -> None:
    scores = np.tile([0.5, 0.2, 0.5, 0.1], (100, 1))
    (warning,) = warnings_of_scores(np.ones(100), scores)
    assert warning.startswith("labels[1] and labels[3] are the most probable of none of 100 items:")
    assert warnings_of_scores(np.ones(99), scores[:99]) == []
    scores[7, 1] = scores[8, 3] = 0.5
    assert warnings_of_scores(None, scores) == []


def test_only_items_that_have_a_label_count_for_it() -> None:
    scores = np.tile([0.5, 0.2, 0.1], (150, 1))
    counts = np.array([2] * 100 + [3] * 50, np.int32)
    (warning,) = warnings_of_scores(np.ones(150), scores, counts, items="documents")
    assert warning.startswith("labels[1] is the most probable of none of 150 documents:")
    assert warnings_of_scores(None, np.zeros((300, 5)), np.ones(300, np.int32)) == []


@pytest.mark.parametrize("temperature", [0.1, 1.0, 2.5, 1e6])
def test_a_temperature_divides_logits_and_log_probabilities_alike(temperature: float) -> None:
    values = np.array([[1.0, -2.0, 3.5], [0.0, -INF, -7.0]], np.float32)
    whole = values.astype(np.float64) - 4.25  # as if four and a quarter were the logarithm of the sum
    expected = np.exp(whole / temperature) / np.exp(whole / temperature).sum(axis=1, keepdims=True)
    found = to_scores(LabelScores(values, None), apply_softmax=True, temperature=temperature)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(LOGITS, st.floats(5e-324, 1e6))
def test_scores_of_any_temperature_are_finite_and_sum_to_one(values: np.ndarray, temperature: float) -> None:
    found = to_scores(LabelScores(values, None), apply_softmax=True, temperature=temperature)
    assert np.isfinite(found).all()
    reachable = ~np.isneginf(values).all(axis=1)
    np.testing.assert_allclose(found.sum(axis=1), reachable.astype(float), atol=1e-12)


def test_probabilities_have_no_temperature() -> None:
    with_it, without = (to_scores(logprobs([-1.0, -2.0]), False, temperature) for temperature in (0.5, 1.0))
    assert with_it.tolist() == without.tolist()
