"""The algorithms that the planner chooses, and what must not change its choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shapes import QWEN3_06B
from model.buckets import Buckets
from scoring.planning.algorithms import Algorithm, Policy
from scoring.planning.estimates import MEASURED, Estimator, Rates
from scoring.planning.lengths import GroupLengths
from scoring.planning.planner import Planner
from settings.engine import EngineSettings

INVARIANT = Policy("auto", "auto", prefill_extend_enabled=True, min_prefix_tokens=64, max_packed_tokens=8_192)
FREE = replace(INVARIANT, batch_invariant=False)
BUCKETS = Buckets.of(256, packed=EngineSettings().multi_item_precompile_buckets, max_packed_tokens=8_192)
ESTIMATOR = Estimator(QWEN3_06B.size, Rates.of("cpu"), BUCKETS.shapes)


def uniform(prefix: int, items: int, length: int, *, cached: bool = False) -> GroupLengths:
    return GroupLengths(prefix, np.full(items, length, np.int32), np.full(items, prefix, np.int32), cached)


def picked(group: GroupLengths, policy: Policy = FREE) -> Algorithm:
    (assignment,) = Planner(policy, ESTIMATOR).plan(group)
    return assignment.choice.algorithm


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (uniform(2_000, 500, 20), Algorithm.PREFILL_EXTEND),
        (uniform(8_000, 100, 20), Algorithm.PREFILL_EXTEND),
        (uniform(100, 10, 100), Algorithm.PACKED_SEGMENT),
        (uniform(300, 10, 20), Algorithm.PACKED_SEGMENT),
        # A cached prefix need not be computed again.
        (uniform(2_000, 10, 20, cached=True), Algorithm.PREFILL_EXTEND),
    ],
)
def test_without_batch_invariance_the_fastest_algorithm_is_chosen(group: GroupLengths, expected: Algorithm) -> None:
    assert picked(group) is expected


def test_with_batch_invariance_other_rows_do_not_change_the_algorithm() -> None:
    for group in (uniform(2_000, 500, 20), uniform(100, 10, 100), uniform(100, 1, 100), uniform(100, 1, 0)):
        assert picked(group, INVARIANT) is Algorithm.PREFILL_EXTEND
    assert picked(uniform(63, 500, 20), INVARIANT) is Algorithm.SERIAL


LENGTHS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300)), min_size=1, max_size=12)


@given(lengths=LENGTHS, policy=st.sampled_from([INVARIANT, FREE]), cached=st.booleans())
def test_every_row_is_assigned_once_and_every_estimate_is_finite(
    lengths: list[tuple[int, int]], policy: Policy, cached: bool
) -> None:
    ends, own = np.array(lengths, np.int32).T
    planner, group = Planner(policy, ESTIMATOR), GroupLengths(400, own, ends, cached)
    parts = planner.plan(group)
    assert sorted(np.concatenate([part.rows for part in parts])) == list(range(len(lengths)))
    assert np.isfinite(sum(ESTIMATOR.of(one.choice.algorithm, group.only(one.rows)).seconds for one in parts))
    for part in parts:
        if part.choice.algorithm is not Algorithm.SERIAL:
            assert (ends[part.rows] > 0).all()


@given(lengths=LENGTHS)
def test_with_batch_invariance_each_row_is_scored_as_it_is_alone(lengths: list[tuple[int, int]]) -> None:
    ends, own = np.array(lengths, np.int32).T
    planner = Planner(INVARIANT, ESTIMATOR)
    for part in planner.plan(GroupLengths(400, own, ends)):
        for row in part.rows:
            (alone,) = planner.plan(GroupLengths(400, own[[row]], ends[[row]]))
            assert alone.choice == part.choice


def test_algorithms_that_are_switched_off_are_not_chosen() -> None:
    group = uniform(2_000, 500, 20)
    assert picked(group, replace(FREE, prefill_extend_enabled=False)) is Algorithm.PACKED_SEGMENT
    assert picked(group, replace(FREE, min_extended_rows=501)) is Algorithm.PACKED_SEGMENT
    assert picked(group, replace(FREE, min_extended_rows=501, max_packed_tokens=2_019)) is Algorithm.SERIAL
    masked = replace(FREE, max_dense_tokens=1_100, prefill_extend_enabled=False)
    assert picked(uniform(100, 10, 100), masked) is Algorithm.PACKED_DENSE
    assert picked(uniform(100, 10, 100), replace(FREE, algorithm="serial")) is Algorithm.SERIAL


def test_an_estimate_counts_the_tokens_of_padded_steps() -> None:
    def tokens(group: GroupLengths, algorithm: Algorithm = Algorithm.PREFILL_EXTEND) -> int:
        return ESTIMATOR.of(algorithm, group).tokens

    # 2,000 tokens are 7 steps and 208 tokens; 12 items of 20 share a step, and 500 of them leave 8 over.
    assert tokens(uniform(2_000, 500, 20)) == 8 * 256 + 41 * 256 + 256
    assert tokens(uniform(2_000, 500, 20, cached=True)) == 41 * 256 + 256
    assert tokens(uniform(300, 1, 0)) == 256 + 64
    assert tokens(uniform(300, 1, 600)) == 256 + 64 + 2 * 256 + 128
    assert tokens(uniform(100, 10, 100), Algorithm.SERIAL) == 10 * 256
    # Short items fill the steps of long ones: 200 and 56, 130 and 126, and the rest by themselves.
    lengths = np.array([56, 130, 20, 200, 126, 30], np.int32)
    assert tokens(GroupLengths(300, lengths, np.full(6, 300, np.int32), cached=True)) == 256 + 256 + 64
    assert tokens(uniform(100, 10, 100), Algorithm.PACKED_SEGMENT) == 1_280


@pytest.mark.parametrize("prefix", [0, 1, 256, 300])
def test_a_long_sequence_is_estimated_as_its_steps_one_after_another(prefix: int) -> None:
    step, longest = ESTIMATOR.shapes.step_tokens, 5 * ESTIMATOR.shapes.step_tokens
    lengths = np.array([1, 64, step, step + 1, 2 * step, 3 * step, 3 * step + 70, 4 * step, longest])
    found = ESTIMATOR.long(lengths, prefix)
    for length, seconds in zip(lengths.tolist(), found.seconds.tolist(), strict=True):
        starts = range(0, length, step)
        one_by_one = [ESTIMATOR.long(min(step, length - start), prefix + start).sum().seconds for start in starts]
        assert seconds == pytest.approx(sum(one_by_one)), length


def test_more_work_is_never_estimated_to_take_less() -> None:
    for algorithm in Algorithm:
        for prefix in (100, 2_000):
            seconds = [ESTIMATOR.of(algorithm, uniform(prefix, items, 20)).seconds for items in (1, 10, 100, 1_000)]
            assert seconds == sorted(seconds)


def test_a_platform_without_rates_uses_those_of_a_cpu(tmp_path: Path) -> None:
    stored = json.loads((MEASURED / "cpu.json").read_text())
    (tmp_path / "cpu.json").write_text(json.dumps(stored))
    (tmp_path / "gpu.json").write_text(json.dumps(stored | {"prefix_gflops": 1.0}))
    assert Rates.of("gpu", tmp_path).prefix == 1.0
    assert Rates.of("tpu", tmp_path) == Rates.of("cpu", tmp_path)


def test_a_tpu_is_planned_for_by_rates_of_its_own() -> None:
    assert Rates.of("tpu").linear_at(2_048) > 1_000 * Rates.of("cpu").linear_at(2_048)
