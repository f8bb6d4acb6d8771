"""A threshold keeps its promise, and is hardly stricter than it must be."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from benchmarks.judgement.made_up import WORLDS
from benchmarks.judgement.promises import sets, thresholds
from judgement.sample import JudgementError, Sample
from judgement.thresholds import certify, first_test, rows_needed, set_bound


@pytest.mark.parametrize(
    "name",
    ["two labels", *(pytest.param(name, marks=pytest.mark.slow) for name in ("two labels, ties", "five labels"))],
)
def test_the_error_is_as_promised_and_a_threshold_is_given(name: str) -> None:
    kept = thresholds(WORLDS[name], 1_000, 60, 0.05, true_rows=200_000)
    assert kept.level_held >= 0.88  # of 60 files; the benchmark draws 1,000
    assert kept.given >= 0.9


def test_a_large_file_has_a_threshold_close_to_the_best_one() -> None:
    kept = thresholds(WORLDS["two labels"], 20_000, 5, 0.05, true_rows=200_000)
    assert kept.oracle <= kept.abstained * 1.02
    assert kept.abstained <= 1.1 * kept.oracle


def test_without_an_error_all_rows_are_acted_on() -> None:
    truth = np.arange(200) % 2
    shares = np.where(truth[:, None] == [0, 1], 0.7, 0.3)
    certified = certify(Sample.of(shares, truth), 0.05)
    assert certified is not None
    assert (certified.threshold, certified.acted, certified.errors) == (0.0, 200, 0)


def test_where_most_answers_are_wrong_there_is_no_threshold() -> None:
    assert certify(Sample.of([[0.9, 0.1]] * 400, [0, 1] * 200), 0.05) is None


def test_so_many_rows_are_needed_at_least() -> None:
    assert rows_needed(0.05) == 59
    even = Sample.of([[0.9, 0.1], [0.1, 0.9]] * 29, [0, 1] * 29)
    with pytest.raises(JudgementError, match=r"58 independent rows, and an error of at most 0\.05 takes 59"):
        certify(even, 0.05)
    with pytest.raises(JudgementError, match="independent rows: take one row of each cluster"):
        certify(Sample.of([[0.9, 0.1]] * 100, [0, 1] * 50, [0] * 100), 0.05)


def test_sets_have_the_true_label_as_often_as_promised() -> None:
    covered, size, _ = sets(WORLDS["five labels"], 500, 30, 0.1)["least ambiguous"]
    assert covered == pytest.approx(0.9, abs=0.015)
    assert 1.0 <= size < 5.0


def test_too_few_rows_leave_all_labels_in_the_set() -> None:
    assert set_bound(Sample.of([[0.5, 0.3, 0.2]] * 8, [0, 1] * 4), 0.1) == 0.0


def test_the_first_test_says_what_it_would_have_taken() -> None:
    """Where it fails, there is no threshold; and what it could show instead holds if it is asked for."""
    confidence = np.linspace(0.999, 0.6, 400)
    is_wrong = np.zeros(400, np.bool_)
    is_wrong[[5, 20, 60, 90]] = True
    probabilities = np.column_stack([confidence, 1 - confidence])
    sample = Sample.of(probabilities, is_wrong.astype(np.int64))
    assert certify(sample, 0.05) is None
    failed = first_test(sample, 0.05)
    assert (failed.errors, failed.allowed) == (4, 1)
    assert failed.acted >= 118
    assert stats.binom.cdf(failed.errors, failed.acted, failed.provable) == pytest.approx(0.05)
    assert stats.binom.cdf(failed.allowed, failed.acted, 0.05) <= 0.05 < stats.binom.cdf(2, failed.acted, 0.05)
