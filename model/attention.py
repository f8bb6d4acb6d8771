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

QUERY_BLOCK = 256
"""Query positions of one tile, in tokens."""
KEY_BLOCK = 512
"""Key positions of one tile, in tokens."""


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
    query_count, key_count = queries.shape[1], keys.shape[1]
    if query_count <= KEY_BLOCK and key_count <= KEY_BLOCK:
        return _tile(queries, keys, values, start, stop, jnp.int32(0))
    queries, start, stop = (_pad(array, QUERY_BLOCK) for array in (queries, start, stop))
    keys, values = _pad(keys, KEY_BLOCK), _pad(values, KEY_BLOCK)
    key_blocks = keys.shape[1] // KEY_BLOCK

    def query_block(index: Array) -> Attended:
        q, first, last = (
            lax.dynamic_slice_in_dim(array, index * QUERY_BLOCK, QUERY_BLOCK, axis=1)
            for array in (queries, start, stop)
        )

        def key_block(block: Array, so_far: Attended) -> Attended:
            offset = block * KEY_BLOCK
            k, v = (lax.dynamic_slice_in_dim(array, offset, KEY_BLOCK, axis=1) for array in (keys, values))
            return merge(so_far, _tile(q, k, v, first, last, offset))

        nothing = Attended(jnp.zeros(q.shape, jnp.float32), jnp.full(q.shape[:3], -jnp.inf, jnp.float32))
        if differentiable:
            return Attended(*lax.fori_loop(0, key_blocks, key_block, nothing))
        # A row that sees nothing (start >= stop) must not stretch the range.
        seen = first < last
        begin = jnp.min(jnp.where(seen, first, key_blocks * KEY_BLOCK)) // KEY_BLOCK
        end = -(-jnp.max(jnp.where(seen, last, 0)) // KEY_BLOCK)
        return Attended(*lax.fori_loop(begin, end, key_block, nothing))

    blocks = lax.map(query_block, jnp.arange(queries.shape[1] // QUERY_BLOCK, dtype=jnp.int32))
    return Attended(*(_unblock(array)[:, :query_count] for array in blocks))


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


def _tile(queries: Array, keys: Array, values: Array, start: Array, stop: Array, offset: Array) -> Attended:
    """One tile: all queries against all keys given, the first of which is at position ``offset``."""
    B, Q, H, D = queries.shape
    S, K = keys.shape[1:3]
    precision = accumulation_precision(keys.dtype)
    grouped = queries.reshape(B, Q, K, H // K, D)
    scores = jnp.einsum(
        "bqkgd,bskd->bkgqs", grouped, keys, precision=precision, preferred_element_type=jnp.float32
    )  # [B, K, G, Q, S]
    position = offset + jnp.arange(S, dtype=jnp.int32)
    visible = (start[..., None] <= position) & (position < stop[..., None])  # [1 or B, Q, S]
    scores = jnp.where(visible[:, None, None], scores * D**-0.5, -jnp.inf)
    peak = jnp.max(scores, axis=-1, keepdims=True)
    peak = lax.stop_gradient(jnp.where(jnp.isfinite(peak), peak, 0.0))
    weights = jnp.exp(scores - peak)
    total = jnp.sum(weights, axis=-1, keepdims=True)  # [B, K, G, Q, 1]
    empty = total == 0.0
    divisor = jnp.where(empty, 1.0, total)
    out = jnp.einsum(
        "bkgqs,bskd->bkgqd",
        weights.astype(values.dtype),
        values,
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    log_sum_exp = jnp.where(empty, -jnp.inf, peak + jnp.log(divisor))[..., 0]  # [B, K, G, Q]
    return Attended(
        jnp.moveaxis(out / divisor, 3, 1).reshape(B, Q, H, D), jnp.moveaxis(log_sum_exp, 3, 1).reshape(B, Q, H)
    )


def _pad(array: Array, multiple: int) -> Array:
    """Pad axis 1 with zeros to a multiple: a padded query sees nothing, a padded key is seen by nobody."""
    missing = -array.shape[1] % multiple
    return jnp.pad(array, [(0, missing if axis == 1 else 0) for axis in range(array.ndim)]) if missing else array


def _unblock(blocks: Array) -> Array:
    """[N, B, Q, ...] to [B, N * Q, ...]."""
    moved = jnp.moveaxis(blocks, 0, 1)
    return moved.reshape(moved.shape[0], -1, *moved.shape[3:])
