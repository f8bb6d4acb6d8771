"""Calibrated probabilities say how often they are right, on rows that nobody has seen."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.judgement.made_up import WORLDS, World
from benchmarks.judgement.promises import calibrations
from judgement.applying import calibrated
from judgement.calibration import calibrate, fit_platt, fit_temperature, fit_vector
from judgement.sample import JudgementError, Sample


def drawn(world: World, rows: int = 2_000) -> Sample:
    return world.draw(rows, np.random.default_rng(0))


QUICK = "two labels, one rare"


@pytest.mark.parametrize(
    "name", [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in WORLDS if name != QUICK)]
)
def test_the_calibration_error_on_fresh_rows_is_at_most_3_points(name: str) -> None:
    for found in calibrations(WORLDS[name], 2_000, 20_000, seed=0, repetitions=100):
        if found.chosen:
            assert found.error <= 0.03
            assert found.error < found.error_before
        if found.method == "temperature":
            assert found.accuracy_change == 0.0
        assert found.high >= 0.0  # the accuracy is not lower beyond its interval


def test_a_temperature_is_found_again() -> None:
    found = fit_temperature(drawn(World(sharpness=3.0, bias=0.0), 20_000))
    assert found["temperature"] == pytest.approx(3.0, rel=0.1)


def test_slope_and_intercept_are_found_again() -> None:
    found = fit_platt(drawn(World(sharpness=2.0, bias=1.0), 20_000))
    assert found["slope"] == pytest.approx(0.5, abs=0.03)
    assert found["intercept"] == pytest.approx(-0.5, abs=0.1)


def test_the_bias_of_a_label_is_found_again() -> None:
    found = fit_vector(drawn(World(labels=3, sharpness=1.0, bias=2.0), 20_000))
    assert found["weights"] == pytest.approx([1.0] * 3, abs=0.1)
    assert found["biases"][0] - found["biases"][1] == pytest.approx(-2.0, abs=0.15)


def test_what_is_calibrated_already_gains_nothing() -> None:
    found = calibrate(drawn(World(sharpness=1.0, bias=0.0)))
    assert abs(found.gain.interval.value) < 0.002


@pytest.mark.parametrize(("seed", "method"), [(1, "platt"), (0, "temperature")])
def test_a_tie_with_temperature_goes_to_the_method_with_a_bias(seed: int, method: str) -> None:
    """Of the two files, the first has a difference below its standard error, and the second a larger one."""
    sample = World(bias=0.2).draw(1_000, np.random.default_rng(seed))
    found = calibrate(sample)
    assert min(found.held_out, key=found.held_out.__getitem__) == "temperature"
    assert found.method == method
    fewer = calibrate(sample.of_rows(np.arange(999)))
    assert fewer.method == min(fewer.held_out, key=fewer.held_out.__getitem__)


def test_labels_that_can_be_told_apart_without_an_error_leave_finite_parameters() -> None:
    shares = np.random.default_rng(0).uniform(0.0, 1.0, 1_000)
    sample = Sample.of(np.stack([shares, 1 - shares], axis=1), (shares < 0.5).astype(int))
    found = calibrate(sample)
    assert np.isfinite(calibrated(found.method, found.parameters, sample.probabilities)).all()
    assert found.held_out[found.method] < found.held_out["identity"]


def test_rows_of_a_cluster_are_never_on_both_sides() -> None:
    """Rows that are there ten times make no method look better than their copies elsewhere prove."""
    one = drawn(World(sharpness=1.0, bias=0.0, spread=0.3), 200)
    copies = Sample.of(
        np.tile(one.probabilities, (10, 1)), np.tile(one.truth, 10), np.tile(np.arange(200), 10).tolist()
    )
    assert calibrate(copies).held_out["platt"] == pytest.approx(calibrate(one).held_out["platt"], abs=0.02)


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        (drawn(WORLDS["two labels"], 199), "there are 199 independent rows, and 200 are needed"),
        (Sample.of([[0.5, 0.5]] * 400, [0, 1] * 200, [n // 4 for n in range(400)]), "there are 100 independent rows"),
        (Sample.of([[0.5, 0.5]] * 400, [0] * 400), "all rows have the same true label"),
        (Sample.of([[0.5, 0.5]] * 400, [0] * 391 + [1] * 9), "label 1 is the true one of 9 rows"),
    ],
)
def test_a_file_that_proves_nothing_is_refused(sample: Sample, says: str) -> None:
    with pytest.raises(JudgementError, match=says):
        calibrate(sample)
