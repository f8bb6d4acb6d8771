"""Projections on a TPU whose results are worked on before they leave fast memory.

XLA writes the result of a product in float32 before a kernel takes it, and the slice of a stack of weights, too. While
the vector unit finishes one tile of rows here, the matrix unit projects the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from model.layers.linear import OfStack, Weight

ROWS = 256
"""Rows of a tile, which are projected as one product."""

TOGETHER = 4
"""Tiles that are computed as one run of code, at most."""

PART = 2048
"""Rows that are in fast memory at a time, at most."""

COLUMNS = 256
"""Columns of a turn of the grid, at least: as many as the matrix unit has."""

_OTHER_VMEM = 6 << 20
"""Bytes of fast memory for what is not a block of an array. What a kernel may take, XLA can't keep other arrays in."""

Finish = Callable[[Sequence[Array], Sequence[Array], Sequence[Array]], Array]
"""Returns the result for a tile of rows. It takes the tile's projections [rows, columns] by each of the weights, the
parts of what each row has, [rows, n], and what is the same for all rows."""


def projected(
    entering: Array,
    weights: Sequence[Weight],
    finish: Finish,
    *,
    of_rows: Sequence[Array] = (),
    of_all: Sequence[Array] = (),
    columns: int,
    name: str,
    interpret: Any = False,
) -> Array:
    """Return what ``finish`` makes of the projections of rows [T, width] by weights [width, out]: bf16 [T, out].

    Without weights, it takes the rows themselves. of_rows: arrays [T, n]; of_all: two-dimensional arrays; columns: of
    the projections that ``finish`` takes together, which divide ``out``. ``interpret`` is the parameter of
    ``pallas_call``.
    """
    T, width = entering.shape
    stacks = [weight if isinstance(weight, OfStack) else OfStack(weight[None], jnp.int32(0)) for weight in weights]
    out = stacks[0].shape[1] if stacks else width
    rows = min(ROWS, T)
    part = rows * min(PART // rows, T // rows)
    own = pl.BlockSpec((part, width if stacks else columns), lambda part, column, _: (part, 0 if stacks else column))
    result = pl.BlockSpec((part, columns), lambda part, column, _: (part, column))
    specs = [
        own,
        *[pl.BlockSpec((None, width, columns), lambda part, column, layer: (layer[0], 0, column)) for _ in stacks],
        *[pl.BlockSpec((part, array.shape[1]), lambda part, column, _: (part, 0)) for array in of_rows],
        *[pl.BlockSpec(array.shape, lambda part, column, _: (0, 0)) for array in of_all],
    ]
    arrays = [entering, *[weight.stack for weight in stacks], *of_rows, *of_all]
    blocks = sum(padded_bytes(spec.block_shape, array.dtype) for array, spec in zip(arrays, specs, strict=True))
    blocks += padded_bytes(result.block_shape, jnp.bfloat16)

    def kernel(_: Any, entering: Any, *refs: Any) -> None:
        kernels, rest = refs[: len(stacks)], refs[len(stacks) :]
        of_row, of_every, out = rest[: len(of_rows)], rest[len(of_rows) : -1], rest[-1]
        together = math.gcd(part // rows, TOGETHER)
        same = [array[...] for array in of_every]

        def end(at: Any, parts: Sequence[Array]) -> None:
            out[at, :] = finish(parts, [array[at, :] for array in of_row], same).astype(jnp.bfloat16)

        @pl.loop(0, part // rows // together)
        def tiles(number: Any) -> None:
            before: tuple[Any, Sequence[Array]] | None = None
            for offset in range(together):
                at = pl.ds(pl.multiple_of((number * together + offset) * rows, rows), rows)
                parts = [product(entering[at, :], kernel[...]) for kernel in kernels] or [entering[at, :]]
                if before is not None:
                    end(*before)
                before = at, parts
            assert before is not None
            end(*before)

    found: Array = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(pl.cdiv(T, part), out // columns), in_specs=specs, out_specs=result
        ),
        out_shape=jax.ShapeDtypeStruct((T, out), jnp.bfloat16),  # type: ignore[no-untyped-call]
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=2 * blocks + _OTHER_VMEM
        ),
        interpret=interpret,
        name=name,
    )((stacks[0].number if stacks else jnp.int32(0))[None], *arrays)
    return found


def product(one: Array, other: Array) -> Array:
    """Return the product of two bf16 matrices, summed in float32."""
    return lax.dot_general(one, other, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def padded_bytes(shape: Sequence[Any] | None, dtype: DTypeLike) -> int:
    """Return the bytes of a block in fast memory, whose rows come in eights. Dimensions that are no number are 1."""
    sizes = [size for size in shape or () if isinstance(size, int)]
    rows = [-(-size // 8) * 8 for size in sizes[-2:-1]]
    return jnp.dtype(dtype).itemsize * math.prod([*sizes[:-2], *rows, *sizes[-1:]])
