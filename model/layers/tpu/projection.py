"""Projections on a TPU that begin with the norm of rows and whose results are worked on, all in fast memory.

XLA writes the result of a product in float32 before a kernel takes it, and the slice of a stack of weights, and normed
rows, too. While the vector unit norms or finishes one tile of rows here, the matrix unit projects another.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from model.layers.linear import OfStack, RMSNorm, Weight

ROWS = 256
"""Rows of a tile, which are projected as one product."""

TOGETHER = 4
"""Tiles that are computed as one run of code, at most."""

COLUMNS = 256
"""Columns of the matrix unit."""


class Room(NamedTuple):
    """What a kernel may keep in a chip's fast memory at a time. What it may take, XLA can't keep other arrays in."""

    rows: int
    bytes: int


LARGE = Room(2048, 96 << 20)
"""Of a v5e or v6e, which have 128 MiB. All rows of a step are there, so that weights are read once."""
SMALL = Room(1024, 56 << 20)
"""Of others, which have 64 MiB."""

_OTHER_VMEM = 6 << 20
"""Bytes for what is not a block of an array."""

_NORMED_TILES = 2
"""Tiles of float32 that a norm takes as well."""

Finish = Callable[[Sequence[Array], Sequence[Array], Sequence[Array]], Array]
"""Returns the result for a tile of rows. It takes the tile's projections [rows, columns] by each of the weights, the
parts of what each row has, [rows, n], and what is the same for all rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """One result of a kernel: what ``finish`` makes of the projections of rows."""

    weights: Sequence[Weight]  # [width, out] each; none: it takes the rows themselves
    finish: Finish
    columns: int  # of the projections that ``finish`` takes together, which divide ``out``
    of_all: Sequence[Array] = ()  # two-dimensional arrays


def projected(
    entering: Array,
    projections: Sequence[Projection],
    *,
    norm: RMSNorm | None = None,
    of_rows: Sequence[Array] = (),
    name: str,
    room: Room = LARGE,
    interpret: Any = False,
) -> list[Array]:
    """Return each of the projections of rows [T, width]: bf16 [T, out].

    All weights are of the same layer, or arrays of their own. norm: of the rows, before they are projected; of_rows:
    arrays [T, n]. ``interpret`` is the parameter of ``pallas_call``.
    """
    T, width = entering.shape
    stacks = [[_stacked(weight) for weight in one.weights] for one in projections]
    outs = [of_one[0].shape[1] if of_one else width for of_one in stacks]
    turns = [out // one.columns for out, one in zip(outs, projections, strict=True)]
    firsts = [0, *accumulate(turns)]
    (taken,) = {width if of_one else one.columns for of_one, one in zip(stacks, projections, strict=True)}
    rows = min(ROWS, T)

    def column(number: int, turn: Any) -> Any:
        """Return the column of a projection in a turn of the grid. Before and behind its own turns nothing moves."""
        return turn if len(turns) == 1 else jnp.clip(turn - firsts[number], 0, turns[number] - 1)

    def of_columns(number: int, shape: tuple[int | None, ...], place: Callable[[Any, Any, Any], Any]) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda part, turn, layer: place(part, column(number, turn), layer[0]))

    def whole(array: Array) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda *_: (0, 0))

    of_norm = [] if norm is None else [norm.weight.astype(jnp.float32)[None]]
    fixed, fixed_specs = list(of_norm), [whole(array) for array in of_norm]
    for number, one in enumerate(projections):
        fixed += [*[weight.stack for weight in stacks[number]], *one.of_all]
        of_weight = of_columns(number, (None, width, one.columns), lambda _, column, layer: (layer, 0, column))
        fixed_specs += [*[of_weight] * len(one.weights), *map(whole, one.of_all)]
    # Blocks of arrays are there twice: one is copied while another is computed with. Normed rows are there once.
    row_bytes = 2 * (taken * entering.dtype.itemsize + sum(array.shape[1] * array.dtype.itemsize for array in of_rows))
    row_bytes += 4 * sum(one.columns for one in projections) + (0 if norm is None else 2 * width)
    fixed_bytes = _OTHER_VMEM + (0 if norm is None else _NORMED_TILES * 4 * rows * width)
    fixed_bytes += 2 * sum(
        padded_bytes(spec.block_shape, array.dtype) for array, spec in zip(fixed, fixed_specs, strict=True)
    )
    part = rows * tiles_of_part(T // rows, min(room.rows // rows, (room.bytes - fixed_bytes) // (rows * row_bytes)))
    arrays = [entering, *of_rows, *fixed]
    specs = [
        of_columns(0, (part, taken), lambda part, column, _: (part, 0 if taken == width else column)),
        *[pl.BlockSpec((part, array.shape[1]), lambda part, *_: (part, 0)) for array in of_rows],
        *fixed_specs,
    ]
    results = [
        of_columns(number, (part, one.columns), lambda part, column, _: (part, column))
        for number, one in enumerate(projections)
    ]

    def kernel(_: Any, *refs: Any) -> None:
        left = iter(refs)
        (rows_in,), of_row, norm_in = _take(left, 1), _take(left, len(of_rows)), _take(left, len(of_norm))
        of_each = [(_take(left, len(one.weights)), _take(left, len(one.of_all))) for one in projections]
        outs, kept = _take(left, len(projections)), list(left)
        turn = pl.program_id(1)

        def enter(at: Any, *, first: bool) -> Any:
            """Return rows as they are projected. In the first turn they are normed."""
            if norm is None:
                return rows_in[at, :]
            if first:
                tile = rows_in[at, :]
                scale = lax.rsqrt(jnp.mean(tile * tile, axis=1, keepdims=True) + norm.epsilon)
                kept[0][at, :] = (tile * scale * norm_in[0][...]).astype(jnp.bfloat16)
            return kept[0][at, :]

        def project(number: int, *, first: bool) -> None:
            one, (kernels, of_every) = projections[number], of_each[number]
            together = math.gcd(part // rows, TOGETHER)
            same = [array[...] for array in of_every]

            def end(at: Any, parts: Sequence[Array]) -> None:
                outs[number][at, :] = one.finish(parts, [array[at, :] for array in of_row], same).astype(jnp.bfloat16)

            @pl.loop(0, part // rows // together)
            def tiles(run: Any) -> None:
                before: tuple[Any, Sequence[Array]] | None = None
                for offset in range(together):
                    at = pl.ds(pl.multiple_of((run * together + offset) * rows, rows), rows)
                    entered = enter(at, first=first)
                    parts = [product(entered, kernel[...]) for kernel in kernels] or [entered]
                    if before is not None:
                        end(*before)
                    before = at, parts
                assert before is not None
                end(*before)

        for number, (begin, count) in enumerate(zip(firsts, turns, strict=False)):
            if number == 0 and norm is not None:
                pl.when(turn == 0)(functools.partial(project, 0, first=True))
                begin, count = 1, count - 1
            if len(projections) == 1 and norm is None:
                project(0, first=False)
            elif count:
                inside = (begin <= turn) & (turn < begin + count)
                pl.when(inside)(functools.partial(project, number, first=False))

    found: list[Array] = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(T, part), firsts[-1]),
            in_specs=specs,
            out_specs=results,
            scratch_shapes=[] if norm is None else [pltpu.VMEM((part, width), jnp.bfloat16)],
        ),
        out_shape=[jax.ShapeDtypeStruct((T, out), jnp.bfloat16) for out in outs],  # type: ignore[no-untyped-call]
        compiler_params=pltpu.CompilerParams(
            # The first turn norms rows for the others, and some results wait for their turns.
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=fixed_bytes + part * row_bytes,
        ),
        interpret=interpret,
        name=name,
    )(next((weight.number for of_one in stacks for weight in of_one), jnp.int32(0))[None], *arrays)
    return found


def _stacked(weight: Weight) -> OfStack:
    return weight if isinstance(weight, OfStack) else OfStack(weight[None], jnp.int32(0))


def tiles_of_part(tiles: int, most: int) -> int:
    """Return how many of some tiles are in fast memory at a time.

    It is more than half of what is possible, so that weights are not read too often, and else the number with which the
    last part has the fewest tiles too many.
    """
    most = max(1, min(most, tiles))
    return min(range(most, most // 2, -1), key=lambda count: -(-tiles // count) * count)


def _take(refs: Iterator[Any], count: int) -> list[Any]:
    return [next(refs) for _ in range(count)]


def product(one: Array, other: Array) -> Array:
    """Return the product of two bf16 matrices, summed in float32."""
    return lax.dot_general(one, other, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def padded_bytes(shape: Sequence[Any] | None, dtype: DTypeLike) -> int:
    """Return the bytes of a block in fast memory, whose rows come in eights. Dimensions that are no number are 1."""
    sizes = [size for size in shape or () if isinstance(size, int)]
    rows = [-(-size // 8) * 8 for size in sizes[-2:-1]]
    return jnp.dtype(dtype).itemsize * math.prod([*sizes[:-2], *rows, *sizes[-1:]])
