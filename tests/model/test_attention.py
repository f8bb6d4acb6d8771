"""Every attention path against a float64 dense mask, and the promises of merging."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from model import attention
from model.attention import Attended, attend, merge

TOLERANCE = 2e-5


class Shape(NamedTuple):
    """Sizes of one attention problem: batch, queries, keys, query heads, key heads, head dimension."""

    B: int
    Q: int
    S: int
    H: int
    K: int
    D: int


SHAPES = {
    "one tile": Shape(2, 5, 7, 4, 2, 8),
    "tiles with a rest": Shape(2, 21, 35, 4, 1, 8),
    "whole tiles": Shape(1, 16, 48, 2, 2, 16),
    "one query, many keys": Shape(3, 1, 50, 6, 3, 4),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that a small problem has many."""
    monkeypatch.setattr(attention, "ONE_TILE", 8)
    monkeypatch.setattr(attention, "QUERY_BLOCK", 8)
    monkeypatch.setattr(attention, "KEY_BLOCK", 16)


def oracle(q: np.ndarray, k: np.ndarray, v: np.ndarray, start: np.ndarray, stop: np.ndarray) -> Attended:
    """Dense masked attention in float64."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    k, v = (np.repeat(array, q.shape[2] // k.shape[2], axis=2) for array in (k, v))
    scores = np.einsum("bqhd,bshd->bhqs", q, k) / np.sqrt(q.shape[-1])
    positions = np.arange(k.shape[1])
    visible = (start[..., None] <= positions) & (positions < stop[..., None])
    scores = np.where(visible[:, None], scores, -np.inf)
    peak = scores.max(axis=-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    weights = np.exp(scores - peak)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        log_sum_exp = (peak + np.log(total))[..., 0]
    out = np.einsum("bhqs,bshd->bqhd", weights / np.where(total == 0, 1, total), v)
    return Attended(out, np.moveaxis(log_sum_exp, 1, 2))


@cache
def problem(shape: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values with scores well apart."""
    random = np.random.RandomState(0)
    B, Q, S, H, K, D = shape
    sizes = ((B, Q, H, D), (B, S, K, D), (B, S, K, D))
    q, k, v = (random.standard_normal(size).astype(np.float32) * 1.5 for size in sizes)
    return q, k, v


@cache
def compiled(shape: Shape, differentiable: bool = False) -> jax.stages.Wrapped:
    return jax.jit(lambda *arguments: attend(*arguments, differentiable=differentiable))


def assert_close(found: Attended, expected: Attended) -> None:
    np.testing.assert_allclose(found.out, expected.out, atol=TOLERANCE)
    np.testing.assert_allclose(found.log_sum_exp, expected.log_sum_exp, atol=TOLERANCE)


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("name", SHAPES)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_visible_ranges_agree_with_a_dense_mask(name: str, differentiable: bool, data: st.DataObject) -> None:
    shape = SHAPES[name]
    bounds = st_numpy.arrays(np.int32, (2, shape.B, shape.Q), elements=st.integers(0, shape.S))
    start, stop = data.draw(bounds)
    q, k, v = problem(shape)
    found = compiled(shape, differentiable)(q, k, v, start, stop)
    assert_close(found, oracle(q, k, v, start, stop))


@pytest.mark.parametrize("name", SHAPES)
def test_causal_ranges_for_the_whole_batch_agree_with_a_dense_mask(name: str) -> None:
    shape = SHAPES[name]
    q, k, v = problem(shape)
    stop = np.minimum(np.arange(1, shape.Q + 1, dtype=np.int32), shape.S)[None]
    found = compiled(shape)(q, k, v, np.zeros_like(stop), stop)
    assert_close(found, oracle(q, k, v, np.zeros_like(stop), stop))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("cut", [0, 3, 17, 1000])
def test_two_ranges_merged_are_the_whole_range(name: str, cut: int) -> None:
    shape = SHAPES[name]
    q, k, v = problem(shape)
    start, stop = np.zeros((1, shape.Q), np.int32), np.full((1, shape.Q), shape.S, np.int32)
    middle = np.minimum(stop, cut)
    one, other = compiled(shape)(q, k, v, start, middle), compiled(shape)(q, k, v, middle, stop)
    merged = merge(Attended(*one), Attended(*other))
    assert_close(merged, oracle(q, k, v, start, stop))


def test_merging_nothing_with_nothing_is_nothing() -> None:
    nothing = Attended(jnp.zeros((1, 1, 1, 4)), jnp.full((1, 1, 1), -jnp.inf))
    merged = merge(nothing, nothing)
    assert np.array_equal(merged.out, nothing.out)
    assert np.array_equal(merged.log_sum_exp, nothing.log_sum_exp)


def test_the_log_sum_exp_stays_in_float32_for_bfloat16_operands() -> None:
    q, k, v = (jnp.asarray(array, jnp.bfloat16) for array in problem(SHAPES["tiles with a rest"]))
    stop = jnp.arange(1, q.shape[1] + 1, dtype=jnp.int32)[None]
    found = attend(q, k, v, jnp.zeros_like(stop), stop)
    assert found.out.dtype == found.log_sum_exp.dtype == jnp.float32
    wide = (np.asarray(array, np.float32) for array in (q, k, v))
    expected = oracle(*wide, np.zeros_like(stop), np.asarray(stop))
    np.testing.assert_allclose(found.log_sum_exp, expected.log_sum_exp, atol=1e-5)


def test_tiles_that_no_row_sees_are_never_read() -> None:
    shape = SHAPES["whole tiles"]
    q, k, v = problem(shape)
    k, v = k.copy(), v.copy()
    k[:, 32:], v[:, 32:] = np.nan, np.nan
    start, stop = np.zeros((1, 16), np.int32), np.full((1, 16), 32, np.int32)
    found = compiled(shape)(q, k, v, start, stop)
    assert_close(found, oracle(q, k[:, :32], v[:, :32], start, stop))


def test_a_gradient_goes_through_many_tiles() -> None:
    shape = SHAPES["tiles with a rest"]
    q, k, v = map(jnp.asarray, problem(shape))
    stop = jnp.arange(1, shape.Q + 1, dtype=jnp.int32)[None]

    def total(keys: jax.Array) -> jax.Array:
        return jnp.sum(attend(q, keys, v, jnp.zeros_like(stop), stop, differentiable=True).out ** 2)

    gradient = jax.grad(total)(k)
    step = np.zeros(k.shape, np.float32)
    step[1, 4, 0, 2] = 1e-2
    slope = float(total(k + step) - total(k - step)) / 2e-2
    assert np.isfinite(gradient).all()
    assert float(gradient[1, 4, 0, 2]) == pytest.approx(slope, rel=1e-2)
