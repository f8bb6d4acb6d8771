"""The estimate that decides how much a claim takes."""

from __future__ import annotations

import pytest

from workers.engine_loop.throughput import MEMORY_SECONDS, Throughput


def test_the_estimate_becomes_what_is_measured() -> None:
    throughput = Throughput(first_rate=100.0)
    for _ in range(20):
        throughput.measured(tokens=40_000, seconds=4.0)
    assert throughput.tokens_per_second == pytest.approx(10_000, rel=0.01)
    assert throughput.budget(2.0) == pytest.approx(20_000, rel=0.01)


def test_tiny_batches_weigh_no_more_than_they_last() -> None:
    throughput = Throughput()
    for _ in range(20):
        throughput.measured(tokens=40_000, seconds=4.0)
    for _ in range(100):
        throughput.measured(tokens=5, seconds=0.01)  # 500 tokens a second, for one second in all
    assert throughput.tokens_per_second > 9_000


def test_one_slow_start_is_forgotten() -> None:
    throughput = Throughput()
    throughput.measured(tokens=100, seconds=60.0)  # compiled its programs
    assert throughput.tokens_per_second < 10
    for _ in range(10):
        throughput.measured(tokens=round(MEMORY_SECONDS * 500), seconds=MEMORY_SECONDS / 2)
    assert throughput.tokens_per_second == pytest.approx(1_000, rel=0.1)


def test_a_budget_is_never_nothing() -> None:
    assert Throughput(first_rate=0.001).budget(0.0) == 1


def test_a_guess_is_told_to_nobody() -> None:
    throughput = Throughput(first_rate=100.0)
    assert throughput.measured_rate is None
    throughput.measured(tokens=400, seconds=4.0)
    assert throughput.measured_rate == throughput.tokens_per_second
