"""Attention tile by tile, for CPUs and for whatever has no kernel of its own.

Memory is bounded by one tile of scores, whatever the lengths. Tiles that no row of a query block sees are skipped, not
masked: a query block goes from the first key block it sees to the last one, and passes over those it does not see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from model.attention.contract import Attended, PrefixBlocks, multiply, softmax_part, visible
from model.linear import from_bits

Tile = Callable[[Array, Array], tuple[Array, Array]]
"""Keys [K, D, s] and values [K, s, D] of all key heads, by the numbers of a sequence and of its key block."""


@dataclass(frozen=True, slots=True)
class TiledAttention:
    """An :class:`model.attention.contract.Attention`.

    one_tile: up to so many queries and keys everything is one tile, since loops would cost more than they save;
    query_block, key_block: positions of a tile, at most, so that its scores stay in a core's cache; differentiable:
    visit every tile, since a loop whose bounds are computed has no reverse-mode derivative.
    """

    one_tile: int = 256
    query_block: int = 256
    key_block: int = 256
    differentiable: bool = False

    def attend(self, queries: Array, keys: Array, values: Array, ranges: Array) -> Attended:
        """See :class:`model.attention.contract.Attention`."""
        Q, (S, K) = queries.shape[1], keys.shape[1:3]
        if max(Q, S) <= self.one_tile:
            return _one_tile(queries, keys, values, ranges)
        block = _block(S, self.key_block)
        key_tiles, value_tiles = _key_tiles(keys, block), _key_tiles(values, block).swapaxes(3, 4)

        def tile(sequence: Array, number: Array) -> tuple[Array, Array]:
            return key_tiles[sequence, number], value_tiles[sequence, number]

        rows, key_blocks = _block(Q, self.query_block), -(-S // block)
        if self.differentiable:
            return self._visit(queries, K, ranges, _Visits(0, key_blocks), block, tile)
        active = active_tiles(ranges, rows, block, key_blocks)
        first = jnp.argmax(active, axis=-1).astype(jnp.int32)
        last = jnp.max(jnp.where(active, jnp.arange(key_blocks, dtype=jnp.int32) + 1, 0), axis=-1)
        # Between the first and the last tile that one range reaches, all are seen.
        visits = _Visits(first, last, None if ranges.shape[-2] == 1 else active)
        return self._visit(queries, K, ranges, visits, block, tile)

    def attend_prefix(self, queries: Array, prefix: PrefixBlocks, ends: Array) -> Attended:
        """See :class:`model.attention.contract.Attention`."""
        K, block = prefix.keys.shape[1], prefix.keys.shape[-1]
        rows = _block(queries.shape[0], self.query_block)

        def tile(_: Array, number: Array) -> tuple[Array, Array]:
            return from_bits(prefix.keys[prefix.table[number]]), from_bits(prefix.values[prefix.table[number]])

        longest = jnp.max(_pad(ends[None], rows).reshape(1, -1, rows), axis=-1)
        ranges = jnp.stack([jnp.zeros_like(ends), ends], axis=-1)[None, :, None]
        visits = _Visits(0, (longest + block - 1) // block)
        attended = self._visit(queries[None], K, ranges, visits, block, tile)
        return Attended(attended.out[0], attended.log_sum_exp[0])

    def _visit(self, queries: Array, K: int, ranges: Array, visits: _Visits, block: int, tile: Tile) -> Attended:
        """For one query block after another, visit the active key blocks, with all heads at once."""
        B, Q, H, D = queries.shape
        G = H // K
        rows = _block(Q, self.query_block)
        ranges, queries = _pad(ranges, rows), _pad(queries, rows)
        count = queries.shape[1] // rows
        # Plain matrices, a contiguous one a head: anything else is copied around first, at twice the time.
        tiles = queries.reshape(B, count, rows, K, G, D).transpose(0, 1, 3, 4, 2, 5).reshape(B * count, K, -1, D)
        blocked = ranges.reshape(ranges.shape[0], count, rows, *ranges.shape[2:])

        def query_tile(index: Array) -> Attended:
            sequence, number = index // count, index % count
            shared = sequence % blocked.shape[0]
            row_ranges = jnp.tile(blocked[shared, number], (G, 1, 1))  # [G * q, N, 2]

            def seen(key_number: Array, so_far: _Sums) -> _Sums:
                keys, values = tile(sequence, key_number)
                scores = multiply("kqd,kds->kqs", tiles[index], keys) * D**-0.5
                positions = key_number * block + jnp.arange(block, dtype=jnp.int32)
                return so_far.add(jnp.where(visible(row_ranges, positions), scores, -jnp.inf), values)

            def key_tile(key_number: Array, so_far: _Sums) -> _Sums:
                if visits.active is None:
                    return seen(key_number, so_far)
                is_active = visits.active[shared, number, key_number]
                return _Sums(*lax.cond(is_active, seen, lambda _, unchanged: unchanged, key_number, so_far))

            begin, end = (
                bound if isinstance(bound, int) else bound[shared, number] for bound in (visits.first, visits.last)
            )
            nothing = _Sums.of_nothing((K, G * rows), D)
            return _Sums(*lax.fori_loop(begin, end, key_tile, nothing)).attended()

        def in_order(array: Array) -> Array:
            """[B * count, K, G * q, ...] to [B, Q, H, ...]."""
            rest = array.shape[3:]
            array = jnp.moveaxis(array.reshape(B, count, K, G, rows, *rest), 4, 2)
            return array.reshape(B, count * rows, H, *rest)[:, :Q]

        if B * count == 1:
            attended = Attended(*(part[None] for part in query_tile(jnp.int32(0))))
        else:
            attended = lax.map(query_tile, jnp.arange(B * count, dtype=jnp.int32))
        return Attended(in_order(attended.out), in_order(attended.log_sum_exp))


class _Sums(NamedTuple):
    """A softmax on its way over tiles of keys (FlashAttention, arXiv 2205.14135), float32 all.

    peak: [...], the largest score so far; total: [...], sum of the weights relative to it; out: [..., D], weighted sum.
    """

    peak: Array
    total: Array
    out: Array

    @classmethod
    def of_nothing(cls, shape: tuple[int, ...], D: int) -> _Sums:
        """No key seen yet."""
        zeros = jnp.zeros(shape, jnp.float32)
        return cls(zeros - jnp.inf, zeros, jnp.zeros((*shape, D), jnp.float32))

    def add(self, scores: Array, values: Array) -> _Sums:
        """With the keys of one more tile: scores [K, q, s], minus infinity where one is not seen; values [K, s, D]."""
        peak = lax.stop_gradient(jnp.maximum(self.peak, jnp.max(scores, axis=-1)))
        finite = jnp.where(jnp.isfinite(peak), peak, 0.0)  # the difference of two infinities is never taken
        weights = jnp.exp(scores - finite[..., None])
        shrunk = jnp.exp(self.peak - finite)
        out = multiply("kqs,ksd->kqd", weights.astype(values.dtype), values)
        return _Sums(peak, self.total * shrunk + jnp.sum(weights, axis=-1), self.out * shrunk[..., None] + out)

    def attended(self) -> Attended:
        """What the keys add up to."""
        empty = self.total == 0.0
        divisor = jnp.where(empty, 1.0, self.total)
        log_sum_exp = jnp.where(empty, -jnp.inf, jnp.where(empty, 0.0, self.peak) + jnp.log(divisor))
        return Attended(self.out / divisor[..., None], log_sum_exp)


class _Visits(NamedTuple):
    """Which key blocks each query block visits, int32 and bool [1 or B, query blocks (, key blocks)].

    From ``first`` to before ``last``, those that are ``active`` where that is given. Plain numbers hold for everyone,
    in a loop whose bounds are known, which alone has a reverse-mode derivative.
    """

    first: Array | int
    last: Array | int
    active: Array | None = None


def active_tiles(ranges: Array, query_block: int, key_block: int, key_blocks: int) -> Array:
    """Which tiles hold a visible pair: bool [1 or B, query blocks, key blocks], for ranges int32 [1 or B, Q, N, 2]."""
    ranges = _pad(ranges, query_block)
    first = jnp.arange(key_blocks, dtype=jnp.int32) * key_block
    begin, end = ranges[..., 0, None], ranges[..., 1, None]
    seen = (begin < first + key_block) & (end > first) & (begin < end)  # [B, Q, N, key blocks]
    return seen.reshape(ranges.shape[0], -1, query_block * ranges.shape[2], key_blocks).any(axis=2)


def _one_tile(queries: Array, keys: Array, values: Array, ranges: Array) -> Attended:
    """All sequences and heads at once."""
    B, Q, H, D = queries.shape
    S, K = keys.shape[1:3]
    scores = multiply("bqkgd,bskd->bkgqs", queries.reshape(B, Q, K, H // K, D), keys) * D**-0.5
    seen = visible(ranges, jnp.arange(S, dtype=jnp.int32))  # [1 or B, Q, S]
    attended = softmax_part(jnp.where(seen[:, None, None], scores, -jnp.inf), values, "bkgqs,bskd->bkgqd")
    return Attended(*(jnp.moveaxis(array, 3, 1).reshape(B, Q, H, *array.shape[4:]) for array in attended))


def _key_tiles(keys: Array, block: int) -> Array:
    """[B, S, K, D] as transposed tiles [B, blocks, K, D, block]."""
    padded = _pad(keys, block)
    B, S, K, D = padded.shape
    return padded.reshape(B, S // block, block, K, D).transpose(0, 1, 3, 4, 2)


def _block(length: int, largest: int) -> int:
    """The block size that cuts ``length`` into as few equal blocks as possible, with the least padding."""
    count = -(-length // largest)
    return -(-length // count)


def _pad(array: Array, multiple: int) -> Array:
    """Pad axis 1 with zeros to a multiple: a padded query sees nothing, a padded key is seen by nobody."""
    missing = -array.shape[1] % multiple
    return jnp.pad(array, [(0, missing if axis == 1 else 0) for axis in range(array.ndim)]) if missing else array
