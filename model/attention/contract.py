"""The interface of attention: each query sees one or two ranges of keys.

:func:`merge` combines two results over disjoint keys into one. It needs the log-sum-exp, which therefore is an output
and stays in float32. :class:`model.platforms.Platform` chooses the implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from model.layers.linear import RMSNorm, Weight, accumulation_precision
from model.layers.rotation import RotaryEmbedding, Rotation


class AttentionOutput(NamedTuple):
    """The result of attention: zero, and minus infinity, for queries that see no key."""

    out: Array  # [..., H, D]: float32, or from a kernel bf16, as a product that takes it would round it anyway
    log_sum_exp: Array  # of the scores, float32 [..., H]


class PrefixBlocks(NamedTuple):
    """A prefix in one layer, whose keys and values are in blocks of s tokens in a pool.

    The pool has the weights' dtype, or uint16 for bf16: see :meth:`model.platforms.Platform.pool_dtype`.
    """

    keys: Array  # of the pool: [blocks, K, D, s]
    values: Array  # of the pool: [blocks, K, s, D]
    table: Array  # int32 [N]: the blocks of the prefix in order, and padding of any value


class Attention(Protocol):
    """An implementation of attention. Scores are scaled by ``1 / sqrt(D)``; softmax runs in float32.

    One with a cap keeps the scaled scores within it, see :func:`model.layers.linear.capped`.
    """

    def attend(self, queries: Array, keys: Array, values: Array, ranges: Array) -> AttentionOutput:
        """Return attention of queries to the keys in their ranges.

        queries: [B, Q, H, D]; keys, values: [B, S, K, D] with H a multiple of K (query head h uses key head
        h // (H / K)); ranges: int32 [1 or B, Q, N, 2], where query q sees key k if ``begin <= k < end`` for any of its
        N disjoint ranges, all within S.
        """

    def attend_prefix(
        self, queries: Array, prefix: PrefixBlocks, ends: Array, begins: Array | None = None
    ) -> AttentionOutput:
        """Return attention of queries [T, H, D] to one prefix: query t sees the first ``ends[t]`` tokens of it.

        begins: int32 [T], the token of the prefix from which on each query sees; None: from the first.
        """


class ItemSlots(NamedTuple):
    """The items of a step, apart from one another: a second layout of its T rows, for attention within items alone.

    Each item has a slot, whose length is a power of two, and which begins at a multiple of its length. So a tile of
    rows, whose size is a power of two, too, holds either whole slots or a part of one slot. The slots take S rows, a
    multiple of every tile.
    """

    rows: Array  # int32 [S]: the row of the step that stands here; 0 for padding
    begins: Array  # int32 [S]: the row sees ``begins[r] <= k <= r`` of these S rows; S for padding, which sees nothing
    slots: Array  # int32 [T]: where each row of the step stands in the slots; S for rows that belong to no item


class StepPrefixes(NamedTuple):
    """What the T rows of a step see of prefixes in the pool. All rows of a tile see parts of the same prefix."""

    block_tokens: int  # of each block of the pool
    table: Array  # int32 [tiles, N]: the blocks of each tile's prefix in order, and block 0 behind them
    counts: Array  # int32 [tiles]: how many of these blocks the rows of the tile see, 0 to N
    ends: Array  # int32 [T]: the row sees the first ``ends[t]`` tokens of the prefix, at most those of these blocks
    begins: Array | None = (
        None  # int32 [T]: from which of them on; None: from the first, which is all that kernels take
    )


class AttendPrefix(Protocol):
    """Attention of a step to prefixes in one layer."""

    def __call__(self, queries: Array, pool_keys: Array, pool_values: Array, layer: Array) -> AttentionOutput:
        """Return attention of queries [T, H, D] to the prefixes of their tiles.

        pool_keys, pool_values: [L, K, B, s, P], B blocks of s tokens in each of L layers, and P of
        :meth:`WholeStepAttention.pool_head_dim`, zeros behind the D numbers of a head; layer: int32 [], which layer.
        """


class AttendExtension(Protocol):
    """Attention of a step of items in one layer."""

    def __call__(
        self, queries: Array, keys: Array, values: Array, pool_keys: Array, pool_values: Array, layer: Array
    ) -> AttentionOutput:
        """Return attention of queries [T, H, D] to the prefixes of their tiles, and causally within their items.

        keys, values: [T, K, D]; what comes behind them is that of :class:`AttendPrefix`. The result of rows that belong
        to no item is any finite number.
        """


class AttendPacked(Protocol):
    """Attention of a packed sequence in one layer."""

    def __call__(self, queries: Array, keys: Array, values: Array) -> AttentionOutput:
        """Return attention of queries [T, H, D] to the keys of the sequence, keys and values [T, K, D]."""


Gated = Callable[[Array, RMSNorm | None, Weight, Weight, str], Array]
"""Returns what the down projection of an MLP takes, [T, out]. It takes hidden states, float32 [T, width], their norm,
the weights of gate and up projection, and the name of the activation."""


class WholeStepAttention(Protocol):
    """An implementation of attention for programs that compute a whole step, with all layers of the pool at once.

    Each method takes what is the same in all layers, and returns the function of a layer. What follows from it, such as
    lists of the blocks that a kernel visits, is so computed once for a step.

    A step has T rows in tiles of T / tiles rows. All rows of a tile see parts of the same prefix. Scores are scaled by
    ``1 / sqrt(D)``, and with a cap kept within it; softmax runs in float32. H is a multiple of K, and query head h uses
    key head ``h // (H / K)``.
    """

    def rotation(self, rotary: RotaryEmbedding) -> Rotation:
        """Return how the queries and keys of a step are rotated, whose rows are [T]."""

    @property
    def gated(self) -> Gated | None:
        """How the first half of an MLP is computed; None: by plain products."""

    def pool_head_dim(self, head_dim: int) -> int:
        """Return how many numbers a head of ``head_dim`` takes in the pool."""

    def stored(self, part: Array, rows: Array, layer: Array, places: Array) -> Array:
        """Return the keys or the values of a pool with those of a step in a layer.

        part: [L, K, B, s, P], which may be written in place; rows: [T, K, D]; layer: int32 []; places: int32
        [tiles, 2], the block that the rows of each tile go to, and where in the block they begin.
        """

    def prefix(self, prefixes: StepPrefixes) -> AttendPrefix:
        """Return the attention to prefixes."""

    def extension(self, items: ItemSlots, prefixes: StepPrefixes) -> AttendExtension:
        """Return the attention of items."""

    def packed(self, ranges: Array) -> AttendPacked:
        """Return the attention of a packed sequence.

        ranges: int32 [T, 2, 2], where query q sees key k if ``begin <= k < end`` for one of its two disjoint ranges.
        Rows that see nothing have empty ranges.
        """


class PlainProducts:
    """What an implementation of :class:`WholeStepAttention` has if XLA computes all that is not attention."""

    def rotation(self, rotary: RotaryEmbedding) -> Rotation:
        return rotary

    @property
    def gated(self) -> Gated | None:
        return None

    def pool_head_dim(self, head_dim: int) -> int:
        return head_dim

    def stored(self, part: Array, rows: Array, layer: Array, places: Array) -> Array:
        tiles = len(places)
        tiled = rows.reshape(tiles, -1, *rows.shape[1:]).swapaxes(1, 2)  # [tiles, K, T / tiles, P]
        for number in range(tiles):
            start = (layer, 0, places[number, 0], places[number, 1], 0)
            part = lax.dynamic_update_slice(part, tiled[number][None, :, None], start)
        return part


def causal(length: int, reach: Array | None = None) -> Array:
    """Return the ranges of a causal sequence: int32 [1, length, 1, 2].

    reach: how many tokens each sees at most, itself among them, int32 [].
    """
    ends = jnp.arange(1, length + 1, dtype=jnp.int32)
    begins = jnp.zeros_like(ends) if reach is None else jnp.maximum(ends - reach, 0)
    return jnp.stack([begins, ends], axis=-1)[None, :, None]


def visible(ranges: Array, positions: Array) -> Array:
    """Return which keys are seen: bool [..., S] for ranges [..., N, 2] and key positions [S]."""
    begin, end = ranges[..., 0, None], ranges[..., 1, None]
    return jnp.any((begin <= positions) & (positions < end), axis=-2)


def merge(one: AttentionOutput, other: AttentionOutput) -> AttentionOutput:
    """Return attention over the union of two disjoint sets of keys.

    Where both sides saw no key, no difference of two infinities is taken, and nothing is divided by zero.
    """
    peak = jnp.maximum(one.log_sum_exp, other.log_sum_exp)
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
    weight, other_weight = jnp.exp(one.log_sum_exp - peak), jnp.exp(other.log_sum_exp - peak)
    total = weight + other_weight
    empty = total == 0.0
    divisor = jnp.where(empty, 1.0, total)
    out = one.out * (weight / divisor)[..., None] + other.out * (other_weight / divisor)[..., None]
    return AttentionOutput(out, jnp.where(empty, -jnp.inf, peak + jnp.log(divisor)))


def with_sinks(attended: AttentionOutput, sinks: Array | None) -> Array:
    """Return what attention gives if each head also sees a sink, a key whose value is zero (arXiv:2309.17453).

    sinks: the scores of these keys, [H]; None: there are none.
    """
    if sinks is None:
        return attended.out
    return attended.out * jax.nn.sigmoid(attended.log_sum_exp - sinks.astype(jnp.float32))[..., None]


def softmax_part(scores: Array, values: Array, product: str) -> AttentionOutput:
    """Return the softmax over a set of scores, and the sum of values that it weights.

    scores: float32 [..., S], minus infinity where a key is not seen; product: the einsum of weights and values.
    """
    peak = jnp.max(scores, axis=-1)
    peak = lax.stop_gradient(jnp.where(jnp.isfinite(peak), peak, 0.0))
    weights = jnp.exp(scores - peak[..., None])
    total = jnp.sum(weights, axis=-1)
    out = multiply(product, weights.astype(values.dtype), values)
    empty = total == 0.0
    divisor = jnp.where(empty, 1.0, total)
    return AttentionOutput(out / divisor[..., None], jnp.where(empty, -jnp.inf, peak + jnp.log(divisor)))


def multiply(subscripts: str, one: Array, other: Array) -> Array:
    """Return an einsum that is summed in float32."""
    return jnp.einsum(
        subscripts, one, other, precision=accumulation_precision(other.dtype), preferred_element_type=jnp.float32
    )
