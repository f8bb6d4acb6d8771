"""The attention of whole steps on a TPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from model.attention.contract import (
    AttendExtension,
    AttendPacked,
    AttendPrefix,
    AttentionOutput,
    Gated,
    ItemSlots,
    StepPrefixes,
)
from model.attention.tpu.kernel import CHUNK, COLUMNS, ROWS, Pool, Ranged, attend, by_chunk
from model.attention.tpu.store import stored
from model.attention.tpu.visits import WINDOW, active_windows, prefix_visits, slot_windows
from model.layers.rotation import RotaryEmbedding, Rotation
from model.layers.tpu.gate import gated
from model.layers.tpu.projection import LARGE, Room
from model.layers.tpu.rotation import TPURotation

GROUP = 2
"""Blocks of a prefix that a visit brings: twice 256 tokens, see docs/log.md."""
LANES = 128
"""Numbers that a row of a register of a TPU holds."""


@dataclass(frozen=True, slots=True)
class TPUAttention:
    """A :class:`model.attention.contract.WholeStepAttention` of bf16 operands."""

    interpret: Any = False  # the parameter of the same name of ``pallas_call``: runs the kernels without a TPU
    columns: int = COLUMNS  # that the kernel computes as one run of code: tests take less, which compiles quickly

    lanes: int = LANES  # a head takes a multiple of so many numbers: tests take fewer
    room: Room = LARGE  # of the kernels that project rows

    def rotation(self, rotary: RotaryEmbedding) -> Rotation:
        """See :class:`model.attention.contract.WholeStepAttention`: by a kernel, if heads fill registers."""
        whole = 2 * rotary.cos.shape[-1] % self.lanes == 0
        return TPURotation.of(rotary, room=self.room, interpret=self.interpret) if whole else rotary

    @property
    def gated(self) -> Gated | None:
        return functools.partial(gated, room=self.room, interpret=self.interpret)

    def pool_head_dim(self, head_dim: int) -> int:
        """See :class:`model.attention.contract.WholeStepAttention`. A TPU's memory holds no narrower rows anyway."""
        return -(-head_dim // self.lanes) * self.lanes

    def stored(self, part: Array, rows: Array, layer: Array, places: Array) -> Array:
        return stored(part, self._widened(rows), layer, places, interpret=self.interpret)

    def prefix(self, prefixes: StepPrefixes) -> AttendPrefix:
        block_tokens, table, counts, ends, _ = prefixes
        assert prefixes.begins is None, "the kernel knows no sliding windows"
        visits, tile = prefix_visits(table, counts, block_tokens, GROUP), len(ends) // len(table)
        of_chunks = by_chunk(ends[:, None], min(CHUNK, tile))

        def of_layer(queries: Array, pool_keys: Array, pool_values: Array, layer: Array) -> AttentionOutput:
            pool = Pool(pool_keys, pool_values, layer, visits, of_chunks, tile)
            return self._attend(queries, pool, None)

        return of_layer

    def extension(self, items: ItemSlots, prefixes: StepPrefixes) -> AttendExtension:
        """See :class:`model.attention.contract.WholeStepAttention`. The prefix goes on from the items' own softmax."""
        block_tokens, table, counts, ends, _ = prefixes
        assert prefixes.begins is None, "the kernel knows no sliding windows"
        visits, tile = prefix_visits(table, counts, block_tokens, GROUP), len(ends) // len(table)
        slots, chunk = len(items.rows), min(CHUNK, tile)
        rows = lax.optimization_barrier(jnp.pad(items.rows, (0, WINDOW)).astype(jnp.uint32))  # type: ignore[no-untyped-call]
        # The slot of a row of no item is behind all slots, so that the row sees nothing.
        begins = jnp.take(items.begins, items.slots, mode="fill", fill_value=slots)
        own_ends = jnp.where(items.slots < slots, items.slots + 1, 0)
        ranges = jnp.stack([begins, own_ends], axis=-1)
        windows = slot_windows(ranges[:, None], chunk, slots)
        of_chunks, own_of_chunks = by_chunk(ends[:, None], chunk), by_chunk(ranges, chunk)

        def in_slots(part: Array) -> Array:
            # Rows of all heads are taken as they lie in memory. Otherwise the compiler moves the heads first.
            flat = part.reshape(len(part), -1)
            return flat.at[rows].get(mode="promise_in_bounds").reshape(len(rows), *part.shape[1:])

        def of_layer(
            queries: Array, keys: Array, values: Array, pool_keys: Array, pool_values: Array, layer: Array
        ) -> AttentionOutput:
            pool = Pool(pool_keys, pool_values, layer, visits, of_chunks, tile)
            own = Ranged(in_slots(self._widened(keys)), in_slots(self._widened(values)), own_of_chunks, windows)
            return self._attend(queries, pool, own)

        return of_layer

    def packed(self, ranges: Array) -> AttendPacked:
        missing = -len(ranges) % WINDOW
        T, chunk = len(ranges), min(CHUNK, len(ranges))
        filled = jnp.pad(ranges, ((0, -T % (ROWS if T > ROWS else chunk)), (0, 0), (0, 0)))
        windows = active_windows(filled, chunk, T + missing)
        of_chunks = by_chunk(filled.reshape(len(filled), -1), chunk)

        def of_layer(queries: Array, keys: Array, values: Array) -> AttentionOutput:
            padded = [jnp.pad(self._widened(part), ((0, missing), (0, 0), (0, 0))) for part in (keys, values)]
            return self._attend(queries, None, Ranged(padded[0], padded[1], of_chunks, windows))

        return of_layer

    def _attend(self, queries: Array, pool: Pool | None, ranged: Ranged | None) -> AttentionOutput:
        D = queries.shape[-1]
        scale = D**-0.5
        widened = self._widened(queries)
        attended = attend(widened, pool, ranged, scale=scale, columns=self.columns, interpret=self.interpret)
        return AttentionOutput(attended.out[..., :D], attended.log_sum_exp)

    def _widened(self, heads: Array) -> Array:
        """Return heads [..., D] with zeros behind them: [..., P], which changes no score."""
        missing = self.pool_head_dim(heads.shape[-1]) - heads.shape[-1]
        return jnp.pad(heads, ((0, 0), (0, 0), (0, missing))) if missing else heads
