"""All attention paths agree with a dense mask in float64, and results can be merged."""

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

from model.attention.contract import Attention, AttentionOutput, PrefixBlocks, causal, merge
from model.attention.dense import DenseAttention
from model.attention.tiles import TiledAttention, active_tiles
from model.layers.linear import to_pool_dtype
from tests.model.attention.attention_steps import quickly
from tests.model.engines import PLATFORM

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
IMPLEMENTATIONS: dict[str, Attention] = {
    # Tiles so small that a small problem has many.
    "tiles": TiledAttention(one_tile=8, query_block=8, key_block=16),
    "differentiable tiles": TiledAttention(one_tile=8, query_block=8, key_block=16, differentiable=True),
    "dense": DenseAttention(),
}


each_shape = pytest.mark.parametrize(
    "of_shape",
    [
        "tiles with a rest",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("one tile", "one query, many keys")),
        pytest.param("whole tiles", marks=pytest.mark.matrix),
    ],
)

MERGED = quickly(merge)
SMALL_PREFIX_TILES = quickly(TiledAttention(query_block=8).attend_prefix)


def oracle(q: np.ndarray, k: np.ndarray, v: np.ndarray, ranges: np.ndarray) -> AttentionOutput:
    """Dense masked attention in float64; ranges [1 or B, Q, N, 2]."""
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    k, v = (np.repeat(array, q.shape[2] // k.shape[2], axis=2) for array in (k, v))
    scores = np.einsum("bqhd,bshd->bhqs", q, k) / np.sqrt(q.shape[-1])
    positions = np.arange(k.shape[1])
    seen: np.ndarray = np.any((ranges[..., 0, None] <= positions) & (positions < ranges[..., 1, None]), axis=2)
    scores = np.where(seen[:, None], scores, -np.inf)
    peak = scores.max(axis=-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    weights = np.exp(scores - peak)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        log_sum_exp = (peak + np.log(total))[..., 0]
    out = np.einsum("bhqs,bshd->bqhd", weights / np.where(total == 0, 1, total), v)
    return AttentionOutput(out, np.moveaxis(log_sum_exp, 1, 2))


@cache
def problem(shape: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values with scores well apart."""
    random = np.random.RandomState(0)
    B, Q, S, H, K, D = shape
    sizes = ((B, Q, H, D), (B, S, K, D), (B, S, K, D))
    q, k, v = (random.standard_normal(size).astype(np.float32) * 1.5 for size in sizes)
    return q, k, v


@cache
def compiled(name: str) -> jax.stages.Wrapped:
    return quickly(IMPLEMENTATIONS[name].attend)


def one_range(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Bounds [1 or B, Q] as ranges."""
    return np.stack([start, stop], axis=-1)[:, :, None].astype(np.int32)


def assert_close(found: AttentionOutput, expected: AttentionOutput) -> None:
    np.testing.assert_allclose(found.out, expected.out, atol=TOLERANCE)
    np.testing.assert_allclose(found.log_sum_exp, expected.log_sum_exp, atol=TOLERANCE)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@each_shape
@settings(max_examples=15)
@given(data=st.data())
def test_any_two_visible_ranges_agree_with_a_dense_mask(name: str, of_shape: str, data: st.DataObject) -> None:
    shape = SHAPES[of_shape]
    bounds = data.draw(st_numpy.arrays(np.int32, (shape.B, shape.Q, 4), elements=st.integers(0, shape.S)))
    # Disjoint: the first range ends where the second may begin. Either may be empty, or turned round.
    middle = np.maximum(bounds[..., 1], bounds[..., 2])
    ranges = np.stack([bounds[..., 0], middle, middle, bounds[..., 3]], axis=-1).reshape(shape.B, shape.Q, 2, 2)
    q, k, v = problem(shape)
    assert_close(compiled(name)(q, k, v, ranges), oracle(q, k, v, ranges))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@each_shape
def test_causal_ranges_for_the_whole_batch_agree_with_a_dense_mask(name: str, of_shape: str) -> None:
    shape = SHAPES[of_shape]
    q, k, v = problem(shape)
    ranges = np.minimum(np.asarray(causal(shape.Q)), shape.S)
    assert_close(compiled(name)(q, k, v, ranges), oracle(q, k, v, ranges))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@each_shape
@pytest.mark.parametrize("cut", [0, 3, 17, 1000])
def test_two_ranges_merged_are_the_whole_range(name: str, of_shape: str, cut: int) -> None:
    shape = SHAPES[of_shape]
    q, k, v = problem(shape)
    start, stop = np.zeros((1, shape.Q), np.int32), np.full((1, shape.Q), shape.S, np.int32)
    middle = np.minimum(stop, cut)
    one, other = (compiled(name)(q, k, v, ranges) for ranges in (one_range(start, middle), one_range(middle, stop)))
    assert_close(MERGED(AttentionOutput(*one), AttentionOutput(*other)), oracle(q, k, v, one_range(start, stop)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@settings(max_examples=15)
@given(
    ends=st.lists(st.integers(0, 40), min_size=13, max_size=13),
    reach=st.none() | st.lists(st.integers(0, 40), min_size=13, max_size=13),
    seed=st.integers(0, 9),
)
def test_a_prefix_in_scattered_blocks_is_seen_as_if_it_lay_in_one_piece(
    dtype: str, ends: list[int], reach: list[int] | None, seed: int
) -> None:
    blocks, K, D, size = 6, 2, 8, 16
    random = np.random.RandomState(seed)
    q = jnp.asarray(random.standard_normal((13, 4, D)), dtype)
    keys, values = (jnp.asarray(random.standard_normal((1, 48, K, D)), dtype) for _ in range(2))
    table = random.permutation(blocks)[:3].astype(np.int32)
    pool = [np.full((blocks, K, *shape), 1e30, np.float32) for shape in ((D, size), (size, D))]
    for n, block in enumerate(table):
        piece = slice(n * size, (n + 1) * size)
        pool[0][block] = np.asarray(keys, np.float32)[0, piece].transpose(1, 2, 0)
        pool[1][block] = np.asarray(values, np.float32)[0, piece].transpose(1, 0, 2)
    pool_keys, pool_values = (to_pool_dtype(jnp.asarray(part, dtype), PLATFORM.pool_dtype(dtype)) for part in pool)
    prefix = PrefixBlocks(pool_keys, pool_values, jnp.asarray(table))
    begins = np.maximum(np.array(ends) - (50 if reach is None else np.array(reach)), 0).astype(np.int32)
    seen = np.array(ends, np.int32), *(() if reach is None else (begins,))
    found = AttentionOutput(*(part[None] for part in SMALL_PREFIX_TILES(q, prefix, *seen)))
    ranges = one_range(begins[None], np.array([ends]))
    expected = oracle(np.asarray(q[None]), np.asarray(keys), np.asarray(values), ranges)
    np.testing.assert_allclose(found.log_sum_exp, expected.log_sum_exp, atol=TOLERANCE)
    np.testing.assert_allclose(found.out, expected.out, atol=TOLERANCE if dtype == "float32" else 0.02)


def test_merging_nothing_with_nothing_is_nothing() -> None:
    out, log_sum_exp = np.zeros((1, 1, 1, 4), np.float32), np.full((1, 1, 1), -np.inf, np.float32)
    nothing = AttentionOutput(jnp.asarray(out), jnp.asarray(log_sum_exp))
    merged = MERGED(nothing, nothing)
    assert np.array_equal(merged.out, out)
    assert np.array_equal(merged.log_sum_exp, log_sum_exp)


def test_the_log_sum_exp_stays_in_float32_for_bfloat16_operands() -> None:
    q, k, v = (jnp.asarray(array, jnp.bfloat16) for array in problem(SHAPES["tiles with a rest"]))
    found = quickly(TiledAttention(one_tile=8).attend)(q, k, v, causal(q.shape[1]))
    assert found.out.dtype == found.log_sum_exp.dtype == jnp.float32
    expected = oracle(np.asarray(q), np.asarray(k), np.asarray(v), np.asarray(causal(q.shape[1])))
    np.testing.assert_allclose(found.log_sum_exp, expected.log_sum_exp, atol=1e-5)


def test_tiles_that_no_row_sees_are_never_read() -> None:
    """Also those between two ranges: a masked tile would bring its NaN into the product."""
    shape = SHAPES["tiles with a rest"]
    q, k, v = problem(shape)
    k, v = k.copy(), v.copy()
    k[:, 12:24], v[:, 12:24] = np.nan, np.nan  # the second of three tiles
    ranges = np.tile(np.array([[0, 12], [24, shape.S]], np.int32), (shape.B, shape.Q, 1, 1))
    found = compiled("tiles")(q, k, v, ranges)
    assert_close(found, oracle(q, np.nan_to_num(k), np.nan_to_num(v), ranges))


def test_a_tile_is_active_if_any_row_sees_any_key_of_it() -> None:
    ranges = np.zeros((1, 5, 2, 2), np.int32)
    ranges[0, 1] = [[3, 4], [9, 9]]  # one key; an empty range
    ranges[0, 4] = [[0, 0], [8, 12]]
    found = np.asarray(quickly(active_tiles, static_argnums=(1, 2, 3))(ranges, 2, 4, 3))
    assert found.astype(int).tolist() == [[[1, 0, 0], [0, 0, 0], [0, 0, 1]]]


@pytest.mark.slow
def test_a_gradient_goes_through_many_tiles() -> None:
    shape = SHAPES["tiles with a rest"]
    q, k, v = map(jnp.asarray, problem(shape))
    attention = IMPLEMENTATIONS["differentiable tiles"]

    def total(keys: jax.Array) -> jax.Array:
        return jnp.sum(attention.attend(q, keys, v, causal(shape.Q)).out ** 2)

    gradient = jax.grad(total)(k)
    step = np.zeros(k.shape, np.float32)
    step[1, 4, 0, 2] = 1e-2
    slope = float(total(k + step) - total(k - step)) / 2e-2
    assert np.isfinite(gradient).all()
    assert float(gradient[1, 4, 0, 2]) == pytest.approx(slope, rel=1e-2)
