"""The attention of whole steps on a TPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from model.attention.contract import AttentionOutput, ItemSlots
from model.attention.tpu.kernel import CHUNK, COLUMNS, Own, Pool, attend_step
from model.attention.tpu.visits import WINDOW, own_windows, prefix_visits

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
        pool = _pool(pool_keys, pool_values, layer, table, counts, ends)
        return attend_step(
            queries,
            pool,
            None,
            tile_rows=len(queries) // len(table),
            K=pool_keys.shape[1],
            columns=self.columns,
            interpret=self.interpret,
        )

    def attend_own(self, queries: Array, keys: Array, values: Array, items: ItemSlots) -> AttentionOutput:
        """See :class:`model.attention.contract.WholeStepAttention`. Rows of no item see nothing."""
        rows = min(CHUNK, len(queries))
        own = _own(keys, values, items, len(queries) // rows)
        return attend_step(
            queries, None, own, tile_rows=rows, K=keys.shape[1], columns=self.columns, interpret=self.interpret
        )


def _pool(keys: Array, values: Array, layer: Array, table: Array, counts: Array, ends: Array) -> Pool:
    return Pool(keys, values, layer, prefix_visits(table, counts, keys.shape[3], _GROUP), ends)


def _own(keys: Array, values: Array, items: ItemSlots, chunks: int) -> Own:
    slots = len(items.rows)
    padding = -slots % WINDOW
    rows = jnp.pad(items.rows, (0, padding))
    # A row of no item, whose slot is behind all slots, sees nothing.
    begins = jnp.take(items.begins, items.slots, mode="fill", fill_value=slots)
    ends = jnp.where(items.slots < slots, items.slots + 1, 0)
    return Own(keys[rows], values[rows], begins, ends, own_windows(begins, ends, chunks, slots + padding))
