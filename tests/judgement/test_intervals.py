"""Intervals hold the truth about as often as they say, also where rows depend on one another."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.judgement.made_up import CLUSTERED, WORLDS, World
from benchmarks.judgement.promises import coverage
from judgement.intervals import Bootstrap, Difference, Interval, resampled
from judgement.metrics import area_under_curve, metrics_of
from judgement.sample import Sample
from judgement.statistics import mean_of


def test_the_same_file_has_the_same_intervals_and_a_system_does_not_differ_from_itself() -> None:
    sample = WORLDS["two labels"].draw(300, np.random.default_rng(0))
    both = {f"{name} {n}": one for n in range(2) for name, one in metrics_of(sample).items()}
    first, again = (Bootstrap(both, sample.cluster_count, repetitions=100) for _ in range(2))
    assert first.interval("auc 0") == again.interval("auc 0")
    difference = first.difference("auc 1", "auc 0")
    assert (difference.interval.value, difference.detectable, difference.is_clear) == (0.0, 0.0, False)


def test_a_label_that_some_resamples_lack_does_not_count_in_them() -> None:
    sample = Sample.of(np.eye(3)[[0, 1] * 20 + [2]] + 0.1, [0, 1] * 20 + [2])
    (row,) = np.flatnonzero(sample.truth == 2)
    counts = np.ones((1, 41))
    counts[0, row] = 0
    (area,) = area_under_curve(sample)(counts)
    assert area == 1.0


def test_a_difference_without_an_interval_is_not_clear() -> None:
    assert not Difference(Interval(0.02, math.nan, math.nan), math.nan).is_clear
    assert Difference(Interval(0.02, 0.01, 0.03), 0.01).is_clear


def test_a_resample_draws_whole_clusters() -> None:
    clusters = np.repeat(np.arange(50), 4)
    found = resampled([mean_of(clusters % 2, clusters)], 50, 200, 0)
    assert np.allclose(found * 50, np.round(found * 50))  # each mean is one of 50 clusters
    assert found.std() == pytest.approx(np.sqrt(0.25 / 50), rel=0.2)


def test_the_smallest_difference_that_is_found_is_28_tenths_of_the_standard_error() -> None:
    generator = np.random.default_rng(0)
    before, after = generator.normal(size=(2, 400))
    clusters = np.arange(400)
    both = {"before": mean_of(before, clusters), "after": mean_of(after, clusters)}
    detectable = Bootstrap(both, 400).difference("after", "before").detectable
    assert detectable == pytest.approx(2.8 * (after - before).std() / 20, rel=0.1)


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(CLUSTERED, id="clusters"),
        pytest.param(WORLDS["two labels, one rare"], marks=pytest.mark.slow, id="rare"),
    ],
)
def test_most_intervals_hold_the_truth(world: World) -> None:
    found = coverage(world, 500, files=40, repetitions=100, true_rows=200_000)
    for name in ("accuracy", "log_loss", "brier", "auc"):
        assert found[name] >= 0.85
        assert found[f"difference of {name}"] >= 0.85
