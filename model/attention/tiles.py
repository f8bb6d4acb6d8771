"""Attention tile by tile, for CPUs and for other platforms without a kernel of their own.

A tile is a block of queries with a block of keys. Only the scores of one tile are in memory at a time, whatever the
lengths. A block of queries visits the key blocks from the first that it sees to the last that it sees. If it does not
see a block between these two, it skips the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from model.attention.contract import AttentionOutput, PrefixBlocks, multiply, softmax_part, visible
from model.layers.linear import capped, from_pool_dtype

NEVER = 2**30
"""A token behind all others."""

Tile = Callable[[Array, Array], tuple[Array, Array]]
"""Returns keys [K, D, s] and values [K, s, D] of all key heads, for the number of a sequence and of a key block."""


@dataclass(frozen=True, slots=True)
class TiledAttention:
    """An :class:`model.attention.contract.Attention`."""

    one_tile: int = 256  # up to this number of queries and keys, one tile without loops is faster
    query_block: int = 256  # queries of a tile at most, so that its scores stay in a core's cache
    key_block: int = 256  # keys of a tile at most
    differentiable: bool = False  # visit all tiles: loops with computed bounds have no reverse-mode derivative
    cap: float | None = None  # of scores, see model.layers.linear.capped

    def attend(self, queries: Array, keys: Array, values: Array, ranges: Array) -> AttentionOutput:
        Q, (S, K) = queries.shape[1], keys.shape[1:3]
        if max(Q, S) <= self.one_tile:
            return _one_tile(queries, keys, values, ranges, self.cap)
        block = _block(S, self.key_block)
        key_tiles, value_tiles = _key_tiles(keys, block), _key_tiles(values, block).swapaxes(3, 4)

        def tile(sequence: Array, number: Array) -> tuple[Array, Array]:
            return key_tiles[sequence, number], value_tiles[sequence, number]

        rows, key_blocks = _block(Q, self.query_block), -(-S // block)
        if self.differentiable:
            return self._visit(queries, K, ranges, _TileRange(0, key_blocks), block, tile)
        active = active_tiles(ranges, rows, block, key_blocks)
        first = jnp.argmax(active, axis=-1).astype(jnp.int32)
        last = jnp.max(jnp.where(active, jnp.arange(key_blocks, dtype=jnp.int32) + 1, 0), axis=-1)
        # A single range sees all tiles between its first and its last.
        visits = _TileRange(first, last, None if ranges.shape[-2] == 1 else active)
        return self._visit(queries, K, ranges, visits, block, tile)

    def attend_prefix(
        self, queries: Array, prefix: PrefixBlocks, ends: Array, begins: Array | None = None
    ) -> AttentionOutput:
        K, block = prefix.keys.shape[1], prefix.keys.shape[-1]
        rows = _block(queries.shape[0], self.query_block)

        def tile(_: Array, number: Array) -> tuple[Array, Array]:
            return from_pool_dtype(prefix.keys[prefix.table[number]]), from_pool_dtype(
                prefix.values[prefix.table[number]]
            )

        of_rows = _pad(ends[None], rows).reshape(1, -1, rows)
        longest = jnp.max(of_rows, axis=-1)
        first: Array | int = 0
        if begins is not None:
            from_rows = _pad(begins[None], rows).reshape(1, -1, rows)
            first = jnp.min(jnp.where(from_rows < of_rows, from_rows, NEVER), axis=-1) // block
        ranges = jnp.stack([jnp.zeros_like(ends) if begins is None else begins, ends], axis=-1)[None, :, None]
        visits = _TileRange(first, (longest + block - 1) // block)
        attended = self._visit(queries[None], K, ranges, visits, block, tile)
        return AttentionOutput(attended.out[0], attended.log_sum_exp[0])

    def _visit(
        self, queries: Array, K: int, ranges: Array, visits: _TileRange, block: int, tile: Tile
    ) -> AttentionOutput:
        """For one query block after another, visit the active key blocks, with all heads at once."""
        B, Q, H, D = queries.shape
        G = H // K
        rows = _block(Q, self.query_block)
        ranges, queries = _pad(ranges, rows), _pad(queries, rows)
        count = queries.shape[1] // rows
        # One contiguous matrix for each head. Products copy any other layout first, which takes twice the time.
        tiles = queries.reshape(B, count, rows, K, G, D).transpose(0, 1, 3, 4, 2, 5).reshape(B * count, K, -1, D)
        blocked = ranges.reshape(ranges.shape[0], count, rows, *ranges.shape[2:])

        def query_tile(index: Array) -> AttentionOutput:
            sequence, number = index // count, index % count
            shared = sequence % blocked.shape[0]
            row_ranges = jnp.tile(blocked[shared, number], (G, 1, 1))  # [G * q, N, 2]

            def visit(key_number: Array, so_far: OnlineSoftmax) -> OnlineSoftmax:
                keys, values = tile(sequence, key_number)
                scores = capped(multiply("kqd,kds->kqs", tiles[index], keys) * D**-0.5, self.cap)
                positions = key_number * block + jnp.arange(block, dtype=jnp.int32)
                return so_far.add(jnp.where(visible(row_ranges, positions), scores, -jnp.inf), values)

            def key_tile(key_number: Array, so_far: OnlineSoftmax) -> OnlineSoftmax:
                if visits.active is None:
                    return visit(key_number, so_far)
                is_active = visits.active[shared, number, key_number]
                return OnlineSoftmax(*lax.cond(is_active, visit, lambda _, unchanged: unchanged, key_number, so_far))

            begin, end = (
                bound if isinstance(bound, int) else bound[shared, number] for bound in (visits.first, visits.last)
            )
            empty = OnlineSoftmax.empty((K, G * rows), D)
            return OnlineSoftmax(*lax.fori_loop(begin, end, key_tile, empty)).attended()

        def in_order(array: Array) -> Array:
            """Reorder [B * count, K, G * q, ...] to [B, Q, H, ...]."""
            rest = array.shape[3:]
            array = jnp.moveaxis(array.reshape(B, count, K, G, rows, *rest), 4, 2)
            return array.reshape(B, count * rows, H, *rest)[:, :Q]

        if B * count == 1:
            attended = AttentionOutput(*(part[None] for part in query_tile(jnp.int32(0))))
        else:
            attended = lax.map(query_tile, jnp.arange(B * count, dtype=jnp.int32))
        return AttentionOutput(in_order(attended.out), in_order(attended.log_sum_exp))


class OnlineSoftmax(NamedTuple):
    """The state of a softmax over tiles of keys (FlashAttention, arXiv 2205.14135), in float32."""

    peak: Array  # [...]: the largest score so far
    total: Array  # [...]: the sum of the weights relative to the peak
    out: Array  # [..., D]: the weighted sum of values

    @classmethod
    def empty(cls, shape: tuple[int, ...], D: int) -> OnlineSoftmax:
        """Return the state before any key."""
        zeros = jnp.zeros(shape, jnp.float32)
        return cls(zeros - jnp.inf, zeros, jnp.zeros((*shape, D), jnp.float32))

    def add(self, scores: Array, values: Array) -> OnlineSoftmax:
        """Add the keys of a tile: scores [K, q, s], minus infinity where a key is not seen; values [K, s, D]."""
        peak = lax.stop_gradient(jnp.maximum(self.peak, jnp.max(scores, axis=-1)))
        finite = jnp.where(jnp.isfinite(peak), peak, 0.0)  # the difference of two infinities is never taken
        weights = jnp.exp(scores - finite[..., None])
        shrunk = jnp.exp(self.peak - finite)
        out = multiply("kqs,ksd->kqd", weights.astype(values.dtype), values)
        return OnlineSoftmax(peak, self.total * shrunk + jnp.sum(weights, axis=-1), self.out * shrunk[..., None] + out)

    def attended(self) -> AttentionOutput:
        """Return the result over all keys that were added."""
        empty = self.total == 0.0
        divisor = jnp.where(empty, 1.0, self.total)
        log_sum_exp = jnp.where(empty, -jnp.inf, jnp.where(empty, 0.0, self.peak) + jnp.log(divisor))
        return AttentionOutput(self.out / divisor[..., None], log_sum_exp)


class _TileRange(NamedTuple):
    """The key blocks that each query block visits: from ``first`` on, up to the one before ``last``.

    A bound that is a plain integer holds for all query blocks. If both bounds are plain integers, the loop has known
    bounds, and so it has a reverse-mode derivative.
    """

    first: Array | int  # int32 [1 or B, query blocks]
    last: Array | int  # int32 [1 or B, query blocks]
    active: Array | None = None  # bool [1 or B, query blocks, key blocks]: visit these alone


def active_tiles(ranges: Array, query_block: int, key_block: int, key_blocks: int) -> Array:
    """Return which tiles hold a visible pair: bool [1 or B, query blocks, key blocks], for ranges [1 or B, Q, N, 2]."""
    ranges = _pad(ranges, query_block)
    first = jnp.arange(key_blocks, dtype=jnp.int32) * key_block
    begin, end = ranges[..., 0, None], ranges[..., 1, None]
    seen = (begin < first + key_block) & (end > first) & (begin < end)  # [B, Q, N, key blocks]
    return seen.reshape(ranges.shape[0], -1, query_block * ranges.shape[2], key_blocks).any(axis=2)


def _one_tile(queries: Array, keys: Array, values: Array, ranges: Array, cap: float | None) -> AttentionOutput:
    """Return attention of all sequences and heads in one tile."""
    B, Q, H, D = queries.shape
    S, K = keys.shape[1:3]
    scores = capped(multiply("bqkgd,bskd->bkgqs", queries.reshape(B, Q, K, H // K, D), keys) * D**-0.5, cap)
    seen = visible(ranges, jnp.arange(S, dtype=jnp.int32))  # [1 or B, Q, S]
    attended = softmax_part(jnp.where(seen[:, None, None], scores, -jnp.inf), values, "bkgqs,bskd->bkgqd")
    return AttentionOutput(*(jnp.moveaxis(array, 3, 1).reshape(B, Q, H, *array.shape[4:]) for array in attended))


def _key_tiles(keys: Array, block: int) -> Array:
    """Return [B, S, K, D] as transposed tiles [B, blocks, K, D, block]."""
    padded = _pad(keys, block)
    B, S, K, D = padded.shape
    return padded.reshape(B, S // block, block, K, D).transpose(0, 1, 3, 4, 2)


def _block(length: int, largest: int) -> int:
    """Return the size that cuts ``length`` into the fewest equal blocks, with the least padding."""
    count = -(-length // largest)
    return -(-length // count)


def _pad(array: Array, multiple: int) -> Array:
    """Pad axis 1 with zeros to a multiple. Padding queries see no key, and no query sees padding keys."""
    missing = -array.shape[1] % multiple
    return jnp.pad(array, [(0, missing if axis == 1 else 0) for axis in range(array.ndim)]) if missing else array
