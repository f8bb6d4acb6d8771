"""The attention contract: each row sees one or two ranges of keys. Every layout of scoring is a way of calling it.

Two results over disjoint keys become one by :func:`merge`, which is why the log-sum-exp is returned, and why it stays
in float32. An implementation is chosen once (:mod:`model.platforms`), and handed to the decoder.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array, lax

from model.linear import accumulation_precision


class Attended(NamedTuple):
    """out: float32 [..., H, D]; log_sum_exp: float32 [..., H]. Zero and minus infinity where nothing is seen."""

    out: Array
    log_sum_exp: Array


class PrefixBlocks(NamedTuple):
    """A prefix, at one layer, whose keys and values lie in blocks of a pool.

    keys: [blocks, K, D, s]; values: [blocks, K, s, D], both of the pool, in the weights' dtype or, for bf16, as the
    integers of its bits; table: int32 [N], the pool's blocks that hold the prefix, in order, and then anything. How
    much of the prefix a token sees is the caller's to say.
    """

    keys: Array
    values: Array
    table: Array


class Attention(Protocol):
    """An implementation. Scores are scaled by ``1 / sqrt(D)``; softmax runs in float32."""

    def attend(self, queries: Array, keys: Array, values: Array, ranges: Array) -> Attended:
        """Attention within a layout.

        queries: [B, Q, H, D]; keys, values: [B, S, K, D] with H a multiple of K (query head h reads key head
        h // (H / K)); ranges: int32 [1 or B, Q, N, 2], where row q sees key k if ``begin <= k < end`` for any of its N
        disjoint ranges, all within S.
        """

    def attend_prefix(self, queries: Array, prefix: PrefixBlocks, ends: Array) -> Attended:
        """Attention of many tokens to one prefix: queries [T, H, D]; token t sees its first ends[t] tokens.

        Returns out [T, H, D] and log_sum_exp [T, H].
        """


def causal(length: int) -> Array:
    """Ranges of a plain causal sequence: int32 [1, length, 1, 2]."""
    positions = jnp.arange(length, dtype=jnp.int32)
    return jnp.stack([jnp.zeros_like(positions), positions + 1], axis=-1)[None, :, None]


def visible(ranges: Array, positions: Array) -> Array:
    """bool [..., S] for ranges [..., N, 2] and key positions [S]."""
    begin, end = ranges[..., 0, None], ranges[..., 1, None]
    return jnp.any((begin <= positions) & (positions < end), axis=-2)


def merge(one: Attended, other: Attended) -> Attended:
    """Attention over the union of two disjoint sets of keys.

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


def softmax_part(scores: Array, values: Array, product: str) -> Attended:
    """The softmax over one set of scores, minus infinity where a key is not seen, and its sum of values.

    scores: float32 [..., S]; values: as ``product``, the einsum of weights and values, wants them.
    """
    peak = jnp.max(scores, axis=-1)
    peak = lax.stop_gradient(jnp.where(jnp.isfinite(peak), peak, 0.0))
    weights = jnp.exp(scores - peak[..., None])
    total = jnp.sum(weights, axis=-1)
    out = multiply(product, weights.astype(values.dtype), values)
    empty = total == 0.0
    divisor = jnp.where(empty, 1.0, total)
    return Attended(out / divisor[..., None], jnp.where(empty, -jnp.inf, peak + jnp.log(divisor)))


def multiply(subscripts: str, one: Array, other: Array) -> Array:
    """An einsum summed and returned in float32."""
    return jnp.einsum(
        subscripts, one, other, precision=accumulation_precision(other.dtype), preferred_element_type=jnp.float32
    )
