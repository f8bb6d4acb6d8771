"""Attention of whole steps in plain XLA: the reference for kernels, on every platform."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from model.attention.contract import (
    AttendExtension,
    AttendPacked,
    AttendPrefix,
    AttentionOutput,
    ItemSlots,
    PlainProducts,
    StepPrefixes,
    merge,
    multiply,
)
from model.attention.tiles import NEVER, OnlineSoftmax, TiledAttention
from model.layers.linear import capped


@dataclass(frozen=True, slots=True)
class XLAAttention(PlainProducts):
    """A :class:`model.attention.contract.WholeStepAttention`."""

    cap: float | None = None  # of scores, see model.layers.linear.capped

    @property
    def _tiles(self) -> TiledAttention:
        """The attention of items and of packed sequences. The slot of an item is a part of one tile, or whole tiles."""
        return TiledAttention(query_block=128, key_block=128, cap=self.cap)

    def prefix(self, prefixes: StepPrefixes) -> AttendPrefix:
        block_tokens, table, counts, ends, begins = prefixes

        def attend(queries: Array, pool_keys: Array, pool_values: Array, layer: Array) -> AttentionOutput:
            (T, H, D), K = queries.shape, pool_keys.shape[1]
            tiles, G = len(table), H // K
            rows = T // tiles
            tiled = queries.reshape(tiles, rows, K, G, D).transpose(0, 2, 3, 1, 4).reshape(tiles, K, G * rows, D)

            def tile(number: Array) -> AttentionOutput:
                tile_ends = jnp.tile(ends.reshape(tiles, rows)[number], G)[:, None]  # [G * rows, 1]
                tile_begins = 0 if begins is None else jnp.tile(begins.reshape(tiles, rows)[number], G)[:, None]
                # A row that sees nothing of the prefix, such as padding, begins nowhere.
                first: Array | int = 0
                if begins is not None:
                    first = jnp.min(jnp.where(tile_begins < tile_ends, tile_begins, NEVER)) // block_tokens

                def visit(index: Array, so_far: OnlineSoftmax) -> OnlineSoftmax:
                    block = table[number, index]
                    scores = multiply("kqd,ksd->kqs", tiled[number], pool_keys[layer, :, block]) * D**-0.5
                    scores = capped(scores, self.cap)
                    places = index * block_tokens + jnp.arange(block_tokens, dtype=jnp.int32)
                    seen = places < tile_ends if begins is None else (places < tile_ends) & (places >= tile_begins)
                    return so_far.add(jnp.where(seen, scores, -jnp.inf), pool_values[layer, :, block])

                empty = OnlineSoftmax.empty((K, G * rows), D)
                return OnlineSoftmax(*lax.fori_loop(first, counts[number], visit, empty)).attended()

            out, log_sum_exp = lax.map(tile, jnp.arange(tiles, dtype=jnp.int32))
            return AttentionOutput(
                out.reshape(tiles, K, G, rows, D).transpose(0, 3, 1, 2, 4).reshape(T, H, D),
                log_sum_exp.reshape(tiles, K, G, rows).transpose(0, 3, 1, 2).reshape(T, H),
            )

        return attend

    def extension(self, items: ItemSlots, prefixes: StepPrefixes) -> AttendExtension:
        attend_prefix = self.prefix(prefixes)
        own_ends = jnp.arange(1, len(items.rows) + 1, dtype=jnp.int32)
        ranges = jnp.stack([items.begins, own_ends], axis=-1)[None, :, None]

        def attend(
            queries: Array, keys: Array, values: Array, pool_keys: Array, pool_values: Array, layer: Array
        ) -> AttentionOutput:
            in_slots = [part[items.rows][None] for part in (queries, keys, values)]
            attended = self._tiles.attend(in_slots[0], in_slots[1], in_slots[2], ranges)
            own = AttentionOutput(*(jnp.take(part[0], items.slots, axis=0, mode="clip") for part in attended))
            return merge(attend_prefix(queries, pool_keys, pool_values, layer), own)

        return attend

    def packed(self, ranges: Array) -> AttendPacked:
        def attend(queries: Array, keys: Array, values: Array) -> AttentionOutput:
            attended = self._tiles.attend(queries[None], keys[None], values[None], ranges[None])
            return AttentionOutput(attended.out[0], attended.log_sum_exp[0])

        return attend
