"""The measured rate, which decides how much work a claim takes."""

from __future__ import annotations

import pytest

from workers.engine_loop.measuring.throughput import TIME_CONSTANT_SECONDS, Throughput


def test_the_estimate_converges_to_the_measured_rate() -> None:
    throughput = Throughput(initial_rate=100.0)
    for _ in range(20):
        throughput.record(tokens=40_000, seconds=4.0)
    assert throughput.tokens_per_second == pytest.approx(10_000, rel=0.01)
    assert throughput.budget(2.0) == pytest.approx(20_000, rel=0.01)


def test_many_tiny_batches_count_only_for_the_time_they_took() -> None:
    throughput = Throughput()
    for _ in range(20):
        throughput.record(tokens=40_000, seconds=4.0)
    for _ in range(100):
        throughput.record(tokens=5, seconds=0.01)  # 500 tokens a second, for one second in all
    assert throughput.tokens_per_second > 9_000


def test_a_slow_first_batch_loses_its_weight() -> None:
    throughput = Throughput()
    throughput.record(tokens=100, seconds=60.0)  # the first batch had to wait for compilations
    assert throughput.tokens_per_second < 10
    for _ in range(10):
        throughput.record(tokens=round(TIME_CONSTANT_SECONDS * 500), seconds=TIME_CONSTANT_SECONDS / 2)
    assert throughput.tokens_per_second == pytest.approx(1_000, rel=0.1)


def test_a_budget_is_at_least_one_token() -> None:
    assert Throughput(initial_rate=0.001).budget(0.0) == 1


def test_the_initial_guess_is_not_reported_as_a_measured_rate() -> None:
    throughput = Throughput(initial_rate=100.0)
    assert throughput.measured_rate is None
    throughput.record(tokens=400, seconds=4.0)
    assert throughput.measured_rate == throughput.tokens_per_second
