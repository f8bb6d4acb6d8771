"""Attention tile by tile, for CPUs and for whatever has no kernel of its own.

Memory is bounded by one tile of scores, whatever the lengths. Tiles that no row of a query block sees are skipped, not
masked: a query block goes from the first key block it sees to the last one, and passes over those it does not see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from model.attention import Attended, PrefixBlocks, merge, multiply, softmax_part, visible
from model.product import from_bits

Tile = Callable[[Array, Array], tuple[Array, Array]]
"""Keys [D, s] and values [s, D] of a key head's block, by the numbers of both."""


@dataclass(frozen=True, slots=True)
class TiledAttention:
    """An :class:`model.attention.Attention`.

    one_tile: up to so many queries and keys everything is one tile, since loops would cost more than they save;
    query_block, key_block: positions of a tile, at most, so that its scores stay in a core's cache; differentiable:
    visit every tile, since a loop whose bounds are computed has no reverse-mode derivative.
    """

    one_tile: int = 96
    query_block: int = 256
    key_block: int = 256
    differentiable: bool = False

    def attend(self, queries: Array, keys: Array, values: Array, ranges: Array) -> Attended:
        """See :class:`model.attention.Attention`."""
        Q, (S, K) = queries.shape[1], keys.shape[1:3]
        if max(Q, S) <= self.one_tile:
            return _one_tile(queries, keys, values, ranges)
        block = _block(S, self.key_block)
        key_tiles, value_tiles = _key_tiles(keys, block), _key_tiles(values, block).swapaxes(2, 3)

        def tile(head: Array, number: Array) -> tuple[Array, Array]:
            return key_tiles[head, number], value_tiles[head, number]

        return self._visit(queries, K, ranges, -(-S // block), block, tile)

    def attend_prefix(self, queries: Array, prefix: PrefixBlocks, ends: Array) -> Attended:
        """See :class:`model.attention.Attention`."""
        B, L, H, D = queries.shape
        K, block = prefix.keys.shape[2], prefix.keys.shape[-1]
        stop = jnp.repeat(ends, L)
        ranges = jnp.stack([jnp.zeros_like(stop), stop], axis=-1)[None, :, None]

        def tile(head: Array, number: Array) -> tuple[Array, Array]:
            place = (prefix.table[number], prefix.layer, head)
            return from_bits(prefix.keys[place]), from_bits(prefix.values[place])

        # The rows of all sequences in one axis: the prefix is read once for all of them.
        flat = self._visit(queries.reshape(1, B * L, H, D), K, ranges, prefix.table.shape[0], block, tile)
        return Attended(flat.out.reshape(B, L, H, D), flat.log_sum_exp.reshape(B, L, H))

    def _visit(self, queries: Array, K: int, ranges: Array, key_blocks: int, block: int, tile: Tile) -> Attended:
        """For one sequence, key head and query block after another, visit the active key blocks."""
        B, Q, H, D = queries.shape
        G = H // K
        rows = _block(Q, self.query_block)
        active = active_tiles(ranges, rows, block, key_blocks)
        ranges, queries = _pad(ranges, rows), _pad(queries, rows)
        query_blocks = queries.shape[1] // rows
        # Plain matrices, a contiguous one a tile: anything else is copied around first, at twice the time.
        tiles = queries.reshape(B, query_blocks, rows, K, G, D).transpose(0, 3, 1, 4, 2, 5)  # [B, K, nQ, G, q, D]
        tiles = tiles.reshape(B * K, query_blocks, G * rows, D)
        blocked = ranges.reshape(ranges.shape[0], query_blocks, rows, *ranges.shape[2:])
        first = jnp.argmax(active, axis=-1).astype(jnp.int32)
        last = jnp.max(jnp.where(active, jnp.arange(key_blocks, dtype=jnp.int32) + 1, 0), axis=-1)

        def query_tile(index: Array) -> Attended:
            head, number = index // query_blocks, index % query_blocks
            sequence = head // K % blocked.shape[0]
            row_ranges = jnp.tile(blocked[sequence, number], (G, 1, 1))  # [G * q, N, 2]

            def seen(key_number: Array, so_far: Attended) -> Attended:
                keys, values = tile(head, key_number)
                scores = multiply("qd,ds->qs", tiles[head, number], keys) * D**-0.5
                positions = key_number * block + jnp.arange(block, dtype=jnp.int32)
                scores = jnp.where(visible(row_ranges, positions), scores, -jnp.inf)
                return merge(so_far, softmax_part(scores, values, "qs,sd->qd"))

            def key_tile(key_number: Array, so_far: Attended) -> Attended:
                if ranges.shape[-2] == 1 or self.differentiable:  # then what lies between is all seen
                    return seen(key_number, so_far)
                is_active = active[sequence, number, key_number]
                return Attended(*lax.cond(is_active, seen, lambda _, unchanged: unchanged, key_number, so_far))

            size = G * rows
            nothing = Attended(jnp.zeros((size, D), jnp.float32), jnp.full((size,), -jnp.inf, jnp.float32))
            begin, end = (0, key_blocks) if self.differentiable else (first[sequence, number], last[sequence, number])
            return Attended(*lax.fori_loop(begin, end, key_tile, nothing))

        def in_order(array: Array) -> Array:
            """[B * K * nQ, G * q, ...] to [B, Q, H, ...]."""
            rest = array.shape[2:]
            array = jnp.moveaxis(array.reshape(B, K, query_blocks, G, rows, *rest), (2, 4), (1, 2))
            return array.reshape(B, query_blocks * rows, H, *rest)[:, :Q]

        attended = lax.map(query_tile, jnp.arange(B * K * query_blocks, dtype=jnp.int32))
        return Attended(in_order(attended.out), in_order(attended.log_sum_exp))


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
    """[B, S, K, D] as transposed tiles [B * K, blocks, D, block]."""
    padded = _pad(keys, block)
    B, S, K, D = padded.shape
    return padded.reshape(B, S // block, block, K, D).transpose(0, 3, 1, 4, 2).reshape(B * K, S // block, D, block)


def _block(length: int, largest: int) -> int:
    """The block size that cuts ``length`` into as few equal blocks as possible, with the least padding."""
    count = -(-length // largest)
    return -(-length // count)


def _pad(array: Array, multiple: int) -> Array:
    """Pad axis 1 with zeros to a multiple: a padded query sees nothing, a padded key is seen by nobody."""
    missing = -array.shape[1] % multiple
    return jnp.pad(array, [(0, missing if axis == 1 else 0) for axis in range(array.ndim)]) if missing else array
