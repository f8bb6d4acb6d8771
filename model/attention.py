"""Attention over a visible range of keys per row. Every layout of scoring is a way of calling :func:`attend`.

Memory is bounded by one tile of scores, whatever the lengths; tiles that no row of a query block sees are never
computed. Two results over disjoint ranges of keys become one by :func:`merge`, which is why the log-sum-exp is
returned, and why it stays in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from model.product import accumulation_precision

ONE_TILE = 96
"""Up to so many keys, everything is one tile: the loops would cost more than they save."""
QUERY_BLOCK = 256
KEY_BLOCK = 256
"""Query and key positions of a tile, in tokens, at most: its scores then stay in a core's cache."""


class Attended(NamedTuple):
    """out: float32 [B, Q, H, D]; log_sum_exp: float32 [B, Q, H]. Zero and minus infinity where nothing is seen."""

    out: Array
    log_sum_exp: Array


def attend(
    queries: Array, keys: Array, values: Array, start: Array, stop: Array, *, differentiable: bool = False
) -> Attended:
    """Softmax attention where row ``q`` sees the keys ``start[q] <= k < stop[q]``.

    queries: [B, Q, H, D]; keys, values: [B, S, K, D] with H a multiple of K (query head h reads key head h // (H / K));
    start, stop: int32 [1 or B, Q], at most S. Scores are scaled by ``1 / sqrt(D)`` and softmax runs in float32.
    differentiable: visit every tile, since a loop whose bounds are computed has no reverse-mode derivative.
    """
    if queries.shape[1] <= ONE_TILE and keys.shape[1] <= ONE_TILE:
        return _one_tile(queries, keys, values, start, stop)
    return _tiles(queries, keys, values, start, stop, differentiable)


def merge(one: Attended, other: Attended) -> Attended:
    """Attention over the union of two disjoint ranges of keys.

    Guarded twice: where both sides saw nothing, the difference of two infinities is never taken, and the zero
    denominator never divides.
    """
    peak = jnp.maximum(one.log_sum_exp, other.log_sum_exp)
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
    weight, other_weight = jnp.exp(one.log_sum_exp - peak), jnp.exp(other.log_sum_exp - peak)
    total = weight + other_weight
    empty = total == 0.0
    divisor = jnp.where(empty, 1.0, total)
    out = one.out * (weight / divisor)[..., None] + other.out * (other_weight / divisor)[..., None]
    return Attended(out, jnp.where(empty, -jnp.inf, peak + jnp.log(divisor)))


def _one_tile(queries: Array, keys: Array, values: Array, start: Array, stop: Array) -> Attended:
    """All sequences and heads at once."""
    B, Q, H, D = queries.shape
    S, K = keys.shape[1:3]
    grouped = queries.reshape(B, Q, K, H // K, D)
    scores = _product("bqkgd,bskd->bkgqs", grouped, keys)
    visible = _visible(start, stop, jnp.arange(S, dtype=jnp.int32))  # [1 or B, Q, S]
    weights, total, peak = _soften(jnp.where(visible[:, None, None], scores * D**-0.5, -jnp.inf))
    out = _product("bkgqs,bskd->bkgqd", weights.astype(values.dtype), values)
    attended = _normalise(out, total, peak)  # [B, K, G, Q, ...]
    return Attended(*(jnp.moveaxis(array, 3, 1).reshape(B, Q, H, *array.shape[4:]) for array in attended))


def _tiles(queries: Array, keys: Array, values: Array, start: Array, stop: Array, differentiable: bool) -> Attended:
    """Tile by tile, for one sequence, key head and query block after another; see :func:`attend`."""
    B, Q, H, D = queries.shape
    S, K = keys.shape[1:3]
    G = H // K
    query_block, key_block = _block(Q, QUERY_BLOCK), _block(S, KEY_BLOCK)
    queries, start, stop = (_pad(array, query_block) for array in (queries, start, stop))
    keys, values = _pad(keys, key_block), _pad(values, key_block)
    query_blocks, key_blocks = queries.shape[1] // query_block, keys.shape[1] // key_block
    # Plain matrices, a contiguous one a tile: a product with anything else is copied around first, at twice the time.
    tiles = queries.reshape(B, query_blocks, query_block, K, G, D).transpose(0, 3, 1, 4, 2, 5)  # [B, K, nQ, G, q, D]
    tiles = tiles.reshape(B * K, query_blocks, G * query_block, D)
    key_tiles = keys.reshape(B, key_blocks, key_block, K, D).transpose(0, 3, 1, 4, 2)  # [B, K, nS, D, s]
    key_tiles = key_tiles.reshape(B * K, key_blocks, D, key_block)
    value_tiles = values.reshape(B, key_blocks, key_block, K, D).transpose(0, 3, 1, 2, 4)  # [B, K, nS, s, D]
    value_tiles = value_tiles.reshape(B * K, key_blocks, key_block, D)
    bounds = jnp.stack([start, stop]).reshape(2, -1, query_blocks, query_block)

    def query_tile(index: Array) -> Attended:
        head, block = index // query_blocks, index % query_blocks
        rows = tiles[head, block]  # [G * q, D]
        first, last = jnp.tile(bounds[:, head // K % bounds.shape[1], block], (1, G))  # [G * q]

        def key_tile(number: Array, so_far: Attended) -> Attended:
            positions = number * key_block + jnp.arange(key_block, dtype=jnp.int32)
            scores = _product("qd,ds->qs", rows, key_tiles[head, number]) * D**-0.5
            scores = jnp.where(_visible(first, last, positions), scores, -jnp.inf)
            weights, total, peak = _soften(scores)
            out = _product("qs,sd->qd", weights.astype(values.dtype), value_tiles[head, number])
            return merge(so_far, _normalise(out, total, peak))

        nothing = Attended(jnp.zeros(rows.shape, jnp.float32), jnp.full(rows.shape[:1], -jnp.inf, jnp.float32))
        if differentiable:
            return Attended(*lax.fori_loop(0, key_blocks, key_tile, nothing))
        # A row that sees nothing (start >= stop) must not stretch the range.
        seen = first < last
        begin = jnp.min(jnp.where(seen, first, S)) // key_block
        end = -(-jnp.max(jnp.where(seen, last, 0)) // key_block)
        return Attended(*lax.fori_loop(begin, end, key_tile, nothing))

    def in_order(array: Array) -> Array:
        """[B * K * nQ, G * q, ...] to [B, Q, H, ...]."""
        rest = array.shape[2:]
        array = jnp.moveaxis(array.reshape(B, K, query_blocks, G, query_block, *rest), (2, 4), (1, 2))
        return array.reshape(B, query_blocks * query_block, H, *rest)[:, :Q]

    attended = lax.map(query_tile, jnp.arange(B * K * query_blocks, dtype=jnp.int32))
    return Attended(in_order(attended.out), in_order(attended.log_sum_exp))


def _product(subscripts: str, one: Array, other: Array) -> Array:
    return jnp.einsum(
        subscripts, one, other, precision=accumulation_precision(other.dtype), preferred_element_type=jnp.float32
    )


def _visible(start: Array, stop: Array, positions: Array) -> Array:
    """bool [..., S] for bounds [...] and key positions [S]."""
    return (start[..., None] <= positions) & (positions < stop[..., None])


def _soften(scores: Array) -> tuple[Array, Array, Array]:
    """Weights relative to the largest of each row, their sum, and that largest score: [..., S], [...], [...]."""
    peak = jnp.max(scores, axis=-1)
    peak = lax.stop_gradient(jnp.where(jnp.isfinite(peak), peak, 0.0))
    weights = jnp.exp(scores - peak[..., None])
    return weights, jnp.sum(weights, axis=-1), peak


def _normalise(out: Array, total: Array, peak: Array) -> Attended:
    empty = total == 0.0
    divisor = jnp.where(empty, 1.0, total)
    return Attended(out / divisor[..., None], jnp.where(empty, -jnp.inf, peak + jnp.log(divisor)))


def _block(length: int, largest: int) -> int:
    """The block size that cuts ``length`` into as few equal blocks as possible, with the least padding."""
    count = -(-length // largest)
    return -(-length // count)


def _pad(array: Array, multiple: int) -> Array:
    """Pad axis 1 with zeros to a multiple: a padded query sees nothing, a padded key is seen by nobody."""
    missing = -array.shape[1] % multiple
    return jnp.pad(array, [(0, missing if axis == 1 else 0) for axis in range(array.ndim)]) if missing else array
