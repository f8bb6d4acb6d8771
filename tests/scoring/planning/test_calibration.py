"""The calibration of estimates by measured times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scoring.planning.calibration import MEMORY_SECONDS, SAMPLE_SECONDS, Calibration, Stopwatch


def test_the_first_comparison_sets_the_ratio() -> None:
    calibration = Calibration()
    assert calibration.ratio == 1.0
    assert calibration.is_due(40.0)
    calibration.compare(estimated=188.0, measured=40.0)
    assert calibration.ratio == pytest.approx(40 / 188)


def test_a_ratio_says_something_of_other_work_once_enough_was_measured() -> None:
    """Each short work takes longer than estimated, and a sample is taken once in some seconds."""
    calibration = Calibration()
    for _ in range(100):
        calibration.is_due(SAMPLE_SECONDS)
        calibration.compare(estimated=0.002, measured=0.01)
    assert calibration.measured_ratio is None
    calibration.is_due(1.0)
    calibration.compare(estimated=2.0, measured=1.0)
    assert calibration.measured_ratio == calibration.ratio == pytest.approx(0.5, rel=0.2)


def test_a_comparison_is_due_once_in_so_many_seconds_of_work() -> None:
    calibration = Calibration()
    assert calibration.is_due(0.1)
    calibration.compare(estimated=0.1, measured=0.1)
    assert not calibration.is_due(0.6 * SAMPLE_SECONDS)
    assert calibration.is_due(0.6 * SAMPLE_SECONDS)


def test_recent_work_weighs_more_than_earlier_work() -> None:
    calibration = Calibration()
    for estimated in (10.0, 40.0):
        assert calibration.is_due(MEMORY_SECONDS)
        calibration.compare(estimated, measured=20.0)
    weights = (2.718281828**-1, 1.0)
    expected = 20.0 * sum(weights) / (10.0 * weights[0] + 40.0 * weights[1])
    assert calibration.ratio == pytest.approx(expected)


def test_short_work_weighs_less_than_long_work() -> None:
    calibration = Calibration()
    for estimated, measured in ((100.0, 20.0), (0.01, 0.02)):
        calibration.is_due(SAMPLE_SECONDS)
        calibration.compare(estimated, measured)
    assert calibration.ratio == pytest.approx(0.2, rel=0.01)


def test_a_stopwatch_stands_still_while_the_caller_has_control() -> None:
    now = 0.0

    def work() -> Iterator[int]:
        nonlocal now
        for number in range(3):
            now += 1.0
            yield number
        now += 0.5

    stopwatch = Stopwatch(lambda: now)
    for _ in stopwatch.timed(work()):
        now += 100.0
    assert stopwatch.seconds == 3.5
