"""Counts of scores say whether they are still distributed like those that an artefact was made from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from judgement.drift import FEWEST_ROWS, LABEL, MASS, SCORE, SMALL_SHIFT, Reference, shifts
from judgement.sample import Floats, JudgementError


def rows(count: int, seed: int, *, sure: float = 1.0, bias: float = 0.0, labels: int = 2) -> tuple[Floats, Floats]:
    """Made-up probabilities, [count, labels], and label masses, [count]."""
    random = np.random.default_rng(seed)
    logits = sure * random.normal(size=(count, labels)) + bias * (np.arange(labels) == 0)
    raised = np.exp(logits)
    return raised / raised.sum(axis=1, keepdims=True), random.beta(8, 2, count)


def alarms(reference: Reference, counts: dict[str, npt.NDArray[np.int64]]) -> set[str]:
    return {one.distribution for one in shifts(reference, counts) if one.is_alarm}


def test_rows_of_the_same_source_are_no_alarm() -> None:
    reference = Reference.of(*rows(2_000, 1))
    found = list(shifts(reference, reference.count(*rows(2_000, 2))))
    assert [one.distribution for one in found] == [LABEL, SCORE, MASS]
    assert not any(one.is_alarm for one in found)
    assert all(one.rows == 2_000 and 0 <= one.index < SMALL_SHIFT for one in found)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sure": 3.0}, {SCORE}),
        ({"bias": 2.0}, {LABEL, SCORE}),
        ({"labels": 2, "mass": 0.1}, {MASS}),
    ],
)
def test_each_distribution_that_has_changed_is_named(change: dict[str, Any], expected: set[str]) -> None:
    reference = Reference.of(*rows(2_000, 1))
    share = change.pop("mass", 1.0)
    shares, mass = rows(1_000, 2, **change)
    assert alarms(reference, reference.count(shares, mass * share)) == expected


def test_the_index_is_the_one_of_the_textbooks() -> None:
    """The sum of the difference of both shares times the logarithm of their quotient, over all cells."""
    reference = Reference({SCORE: [0.6, 0.8]}, {SCORE: [400, 300, 300], LABEL: [500, 500]})
    counts = {SCORE: np.array([300, 300, 400])}
    (found,) = shifts(reference, counts)
    assert found.index == pytest.approx((0.3 - 0.4) * np.log(0.3 / 0.4) + (0.4 - 0.3) * np.log(0.4 / 0.3), rel=5e-3)


def test_few_rows_say_nothing_and_a_small_change_of_many_is_no_alarm() -> None:
    reference = Reference.of(*rows(50_000, 1))
    assert not list(shifts(reference, reference.count(*rows(FEWEST_ROWS - 1, 2, bias=5.0))))
    (_, score, _) = shifts(reference, reference.count(*rows(200_000, 2, sure=1.1)))
    assert 50 * (1 / 50_000 + 1 / 200_000) < score.index < SMALL_SHIFT


def test_rare_labels_are_counted_with_their_neighbours() -> None:
    shares, mass = rows(1_000, 1, labels=50, sure=4.0)
    reference = Reference.of(shares, mass)
    assert not alarms(reference, reference.count(*rows(300, 2, labels=50, sure=4.0)))
    assert LABEL in alarms(reference, reference.count(*rows(300, 2, labels=50, sure=4.0, bias=20.0)))


def test_equal_probabilities_and_impossible_rows_do_no_harm() -> None:
    same = np.full((500, 2), 0.5)
    reference = Reference.of(same, None)
    counts = reference.count(np.concatenate([same, np.zeros((3, 2))]), np.ones(503))
    assert counts[LABEL].sum() == counts[SCORE].sum() == 500
    assert MASS not in counts
    assert not alarms(reference, counts)
    assert not reference.count(np.zeros((0, 2)), None)[LABEL].any()


def test_what_is_written_can_be_read() -> None:
    reference = Reference.of(*rows(400, 1))
    again = Reference.read({"reference": reference.written()})
    assert again == reference
    assert Reference.read({}) is None
    with pytest.raises(JudgementError, match="there are 2 labels, and not 3"):
        reference.count(np.ones((1, 3)), None)
