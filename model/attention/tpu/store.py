"""Writes the keys or the values of a step into a pool on a TPU, where they are, in one call a layer.

By XLA each tile is an update of its own, behind copies that move heads before rows.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def stored(part: Array, rows: Array, layer: Array, places: Array, *, interpret: Any = False) -> Array:
    """See :class:`model.attention.contract.WholeStepAttention`: rows [T, K, P], as wide as the pool's.

    A place in a block is a multiple of the rows of a tile.
    """
    (T, K, P), tiles = rows.shape, len(places)
    height = T // tiles

    def place(tile: Any, layer: Any, blocks: Any, begins: Any) -> tuple[Any, ...]:
        return layer[0], 0, blocks[tile], begins[tile] // height, 0

    def kernel(*refs: Any) -> None:
        own, out = refs[3], refs[5]
        for head in range(K):
            out[head] = own[:, head * P : (head + 1) * P]

    found: Array = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(tiles,),
            in_specs=[pl.BlockSpec((height, K * P), lambda tile, *_: (tile, 0)), pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((None, K, None, height, P), place),
        ),
        out_shape=jax.ShapeDtypeStruct(part.shape, part.dtype),  # type: ignore[no-untyped-call]
        input_output_aliases={4: 0},  # the pool, behind three arrays of numbers and the rows
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=interpret,
        name="scoreline_store",
    )(layer[None], places[:, 0], places[:, 1], rows.reshape(T, K * P), part)
    return found
