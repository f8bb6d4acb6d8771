"""The attention of whole steps on a TPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from model.attention.contract import AttentionOutput, ItemSlots
from model.attention.tpu.kernel import CHUNK, COLUMNS, ROWS, Pool, Ranged, attend
from model.attention.tpu.visits import WINDOW, active_windows, prefix_visits

_GROUP = 2
"""Blocks of a prefix that a visit brings: twice 256 tokens, see docs/log.md."""


@dataclass(frozen=True, slots=True)
class TPUAttention:
    """A :class:`model.attention.contract.WholeStepAttention` of bf16 operands."""

    interpret: Any = False  # the parameter of the same name of ``pallas_call``: runs the kernels without a TPU
    columns: int = COLUMNS  # that the kernel computes as one run of code: tests take less, which compiles quickly

    def attend_prefix(
        self,
        queries: Array,
        pool_keys: Array,
        pool_values: Array,
        layer: Array,
        table: Array,
        counts: Array,
        ends: Array,
    ) -> AttentionOutput:
        """See :class:`model.attention.contract.WholeStepAttention`."""
        return self._attend(queries, _pool(pool_keys, pool_values, layer, table, counts, ends), None)

    def attend_extension(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        items: ItemSlots,
        pool_keys: Array,
        pool_values: Array,
        layer: Array,
        table: Array,
        counts: Array,
        ends: Array,
    ) -> AttentionOutput:
        """See :class:`model.attention.contract.WholeStepAttention`. The prefix goes on from the items' own softmax."""
        slots = len(items.rows)
        rows = jnp.pad(items.rows, (0, -slots % WINDOW))
        # The slot of a row of no item is behind all slots, so that the row sees nothing.
        begins = jnp.take(items.begins, items.slots, mode="fill", fill_value=slots)
        own_ends = jnp.where(items.slots < slots, items.slots + 1, 0)
        own = _ranged(keys[rows], values[rows], jnp.stack([begins, own_ends], axis=-1)[:, None])
        return self._attend(queries, _pool(pool_keys, pool_values, layer, table, counts, ends), own)

    def attend_packed(self, queries: Array, keys: Array, values: Array, ranges: Array) -> AttentionOutput:
        """See :class:`model.attention.contract.WholeStepAttention`."""
        missing = ((0, -len(keys) % WINDOW), (0, 0), (0, 0))
        return self._attend(queries, None, _ranged(jnp.pad(keys, missing), jnp.pad(values, missing), ranges))

    def _attend(self, queries: Array, pool: Pool | None, ranged: Ranged | None) -> AttentionOutput:
        return attend(queries, pool, ranged, columns=self.columns, interpret=self.interpret)


def _pool(keys: Array, values: Array, layer: Array, table: Array, counts: Array, ends: Array) -> Pool:
    visits = prefix_visits(table, counts, keys.shape[3], _GROUP)
    return Pool(keys, values, layer, visits, ends, len(ends) // len(table))


def _ranged(keys: Array, values: Array, ranges: Array) -> Ranged:
    T = len(ranges)
    padded = jnp.pad(ranges, ((0, -T % (ROWS if T > ROWS else min(CHUNK, T))), (0, 0), (0, 0)))
    return Ranged(keys, values, ranges, active_windows(padded, min(CHUNK, T), len(keys)))
