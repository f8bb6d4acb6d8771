"""The attention kernel of whole steps: rows of a step, the keys of their own items, and blocks of a pool of prefixes.

The grid is one key head after another, and for each of them one visit after another
(:mod:`model.attention.tpu.visits`). The rows of a step and the state of their softmax stay in the chip's fast memory
while a key head's visits are made, so each block of the pool is read once for all tiles that see it. Blocks are read
where they are: the list of visits, which is in scalar memory before the kernel starts, says which block comes next, and
it is copied while the kernel computes.

Scores are computed as [keys, rows]: the peaks and sums of rows then lie along lanes, and the product of values and
weights fills the whole matrix unit. Softmax is computed in powers of two, with queries scaled accordingly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from model.attention.contract import AttentionOutput
from model.attention.tpu.visits import WINDOW, OwnWindows, PrefixVisits

UNSEEN = -1e30
"""The score of a key that is not seen. It is finite, so that no difference of two infinities is ever taken."""

CHUNK = 128
"""Rows that are computed at a time, with all query heads of a key head: a tile of the matrix unit is 256 wide."""

COLUMNS = 2048
"""Columns of scores, rows times query heads, that are computed as one run of code. The compiler overlaps the products
of one chunk with the softmax of another only within such a run."""

_VMEM = 96 << 20
"""Bytes of fast memory that the kernel may take. Chips from v5e on have 128 MiB."""


class Pool(NamedTuple):
    """The prefixes of a step: where their keys and values are, and what the step sees of them."""

    keys: Array  # [L, K, B, s, D]
    values: Array  # [L, K, B, s, D]
    layer: Array  # int32 []
    visits: PrefixVisits
    ends: Array  # int32 [T]: row t sees the first ``ends[t]`` tokens of its prefix


class Own(NamedTuple):
    """The items of a step in their slots: see :class:`model.attention.contract.ItemSlots`."""

    keys: Array  # [S, K, D]
    values: Array  # [S, K, D]
    begins: Array  # int32 [T]: row t sees the rows ``begins[t] <= k < ends[t]`` of the slots
    ends: Array  # int32 [T]
    windows: OwnWindows


@dataclass(frozen=True)
class _Sizes:
    chunks: int  # of rows
    rows: int  # R: of a chunk
    per_tile: int  # chunks of a tile
    G: int  # query heads of a key head
    D: int
    block: int  # s: tokens of a block of the pool
    group: int  # blocks of a visit
    together: int  # chunks that are computed as one run of code


class _State(NamedTuple):
    """The softmax of all rows over the keys so far (FlashAttention, arXiv 2205.14135), as references to float32."""

    peak: Any  # [chunks, 1, G * R]: the largest score, in powers of two
    total: Any  # [chunks, 1, G * R]: the sum of the weights relative to the peak
    out: Any  # [chunks, D, G * R]: the weighted sum of values


def attend_step(
    queries: Array,
    pool: Pool | None,
    own: Own | None,
    *,
    tile_rows: int,
    K: int,
    columns: int = COLUMNS,
    interpret: Any = False,
) -> AttentionOutput:
    """Return attention of queries [T, H, D] to the tokens of their own items, and of their prefixes.

    Keys and values are bf16, and so are the operands of all products. ``tile_rows`` rows of a tile have the same
    prefix. ``columns`` is at most :data:`COLUMNS`; tests take less. ``interpret`` is the parameter of the same name of
    ``pallas_call``.
    """
    T, H, D = queries.shape
    sizes = _sizes(T, H // K, D, tile_rows, columns, pool)
    if not interpret and (sizes.rows * sizes.G) % 128:
        raise ValueError(f"{sizes.rows} rows of {sizes.G} heads are no whole number of lanes")
    scaled = queries.astype(jnp.float32) * (D**-0.5 * math.log2(math.e))
    columns = sizes.rows * sizes.G
    of_head = pl.BlockSpec((T, sizes.G * D), lambda head, *_: (0, head))
    whole = pl.BlockSpec((sizes.chunks, 1, columns), lambda *_: (0, 0, 0))
    scalars: list[Array] = []
    arrays, specs = [scaled.astype(jnp.bfloat16).reshape(T, H * D)], [of_head]
    steps: Array | int = 1
    if pool is not None:
        visits = pool.visits
        scalars += [pool.layer[None], visits.blocks, visits.begins, visits.first, visits.tiles]
        steps = jnp.maximum(visits.made, 1)
        arrays += [_by_chunk(pool.ends, sizes), *[pool.keys] * sizes.group, *[pool.values] * sizes.group]
        specs += [whole, *[_block_spec(number, sizes) for number in range(sizes.group)] * 2]
    if own is not None:
        scalars += list(own.windows)
        of_slots = pl.BlockSpec((len(own.keys), D), lambda head, *_: (0, head))
        arrays += [_by_chunk(own.begins, sizes), _by_chunk(own.ends, sizes)]
        arrays += [part.reshape(len(part), K * D) for part in (own.keys, own.values)]
        specs += [whole, whole, of_slots, of_slots]
    small = pltpu.VMEM((sizes.chunks, 1, columns), jnp.float32)
    out, log_sum_exp = pl.pallas_call(
        functools.partial(_kernel, sizes=sizes, behind=pool is not None, within=own is not None),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(K, steps),
            in_specs=specs,
            out_specs=[of_head, pl.BlockSpec((None, sizes.chunks, 1, columns), lambda head, *_: (head, 0, 0, 0))],
            scratch_shapes=[small, small, pltpu.VMEM((sizes.chunks, D, columns), jnp.float32)],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((T, H * D), jnp.float32),  # type: ignore[no-untyped-call]
            jax.ShapeDtypeStruct((K, sizes.chunks, 1, columns), jnp.float32),  # type: ignore[no-untyped-call]
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_VMEM),
        interpret=interpret,
        name="attend_step",
    )(*scalars, *arrays)
    by_head = log_sum_exp.reshape(K, sizes.chunks, sizes.G, sizes.rows).transpose(1, 3, 0, 2)
    return AttentionOutput(out.reshape(T, H, D), by_head.reshape(T, H))


def _sizes(T: int, G: int, D: int, tile_rows: int, columns: int, pool: Pool | None) -> _Sizes:
    rows = min(CHUNK, tile_rows)
    if T % tile_rows or tile_rows % rows:
        raise ValueError(f"{T} rows in tiles of {tile_rows} are no whole number of chunks of {rows}")
    block, group = (pool.keys.shape[3], len(pool.visits.blocks)) if pool is not None else (0, 0)
    return _Sizes(T // rows, rows, tile_rows // rows, G, D, block, group, max(1, columns // (G * rows)))


def _block_spec(number: int, sizes: _Sizes) -> pl.BlockSpec:
    """Return where the pool's block of a visit is, by its number in the visit's group."""

    def place(head: Any, visit: Any, layer: Any, blocks: Any, *_: Any) -> tuple[Any, ...]:
        return layer[0], head, blocks[number, visit], 0, 0

    return pl.BlockSpec((None, None, None, sizes.block, sizes.D), place)


def _by_chunk(of_rows: Array, sizes: _Sizes) -> Array:
    """Return a number of each row, [T], as [chunks, 1, G * R]: the rows of a chunk once for each query head."""
    return jnp.tile(of_rows.reshape(sizes.chunks, 1, sizes.rows), (1, 1, sizes.G))


class _PoolRefs(NamedTuple):
    """What a visit to the pool reads."""

    begins: Any  # of :class:`model.attention.tpu.visits.PrefixVisits`
    first: Any
    tiles: Any
    ends: Any  # [chunks, 1, G * R]: of :class:`Pool`
    keys: Sequence[Any]  # the blocks of the visit: [s, D] each
    values: Sequence[Any]


class _OwnRefs(NamedTuple):
    """What the rows of a step read to see their own items."""

    numbers: Any  # of :class:`model.attention.tpu.visits.OwnWindows`
    counts: Any
    begins: Any  # [chunks, 1, G * R]: of :class:`Own`
    ends: Any
    keys: Any  # [S, D]
    values: Any


def _kernel(*refs: Any, sizes: _Sizes, behind: bool, within: bool) -> None:
    """Make one visit: ``refs`` are the scalars and arrays of :func:`attend_step`, its two results, and the state."""
    left = iter(refs)

    def take(count: int) -> list[Any]:
        return [next(left) for _ in range(count)]

    _, _, begins, first, tiles = take(5) if behind else [None] * 5
    windows = take(2) if within else []
    (queries,) = take(1)
    pool = _PoolRefs(begins, first, tiles, next(left), take(sizes.group), take(sizes.group)) if behind else None
    own = _OwnRefs(*windows, *take(4)) if within else None
    out, log_sum_exp = take(2)
    state = _State(*take(3))

    def chunk_queries(chunk: Any) -> Array:
        heads = [queries[_rows(chunk, sizes), _columns(head, sizes)] for head in range(sizes.G)]
        return jnp.concatenate(heads)

    visit = pl.program_id(1)

    @pl.when(visit == 0)
    def begin() -> None:
        state.peak[...] = jnp.full_like(state.peak, UNSEEN)
        state.total[...] = jnp.zeros_like(state.total)
        state.out[...] = jnp.zeros_like(state.out)
        if own is not None:
            _see_own(own, state, chunk_queries, sizes)

    if pool is not None:
        _see_blocks(pool, visit, state, chunk_queries, sizes)

    @pl.when(visit == pl.num_programs(1) - 1)
    def end() -> None:
        @pl.loop(0, sizes.chunks)
        def write(chunk: Any) -> None:
            some = state.peak[chunk] > UNSEEN / 2
            total = jnp.where(some, state.total[chunk], 1.0)
            attended = jnp.where(some, state.out[chunk] / total, 0.0)  # [D, G * R]
            for head in range(sizes.G):
                of_head = attended[:, head * sizes.rows : (head + 1) * sizes.rows]
                out[_rows(chunk, sizes), _columns(head, sizes)] = of_head.T
            natural = (state.peak[chunk] + jnp.log2(total)) * math.log(2)
            log_sum_exp[chunk] = jnp.where(some, natural, -jnp.inf)


def _see_own(own: _OwnRefs, state: _State, queries: Callable[[Any], Array], sizes: _Sizes) -> None:
    """Add the keys of the rows' own items, window by window."""

    def see(chunks: Sequence[Any]) -> None:
        def window(number: Any) -> None:
            starts = [pl.multiple_of(own.numbers[chunk, number] * WINDOW, WINDOW) for chunk in chunks]

            def keys(index: int) -> list[Array]:
                return [own.keys[pl.ds(starts[index], WINDOW), :]]

            def values(index: int) -> list[Array]:
                return [own.values[pl.ds(starts[index], WINDOW), :]]

            def seen(index: int) -> list[Array]:
                positions, chunk = starts[index] + _key_numbers(WINDOW, sizes), chunks[index]
                return [(own.begins[chunk] <= positions) & (positions < own.ends[chunk])]

            _add(chunks, state, queries, keys, values, seen)

        pl.loop(0, functools.reduce(jnp.maximum, [own.counts[chunk] for chunk in chunks]))(window)

    _for_chunks(0, sizes.chunks, sizes.together, see)


def _see_blocks(pool: _PoolRefs, visit: Any, state: _State, queries: Callable[[Any], Array], sizes: _Sizes) -> None:
    """Add the keys of the pool's blocks of a visit to its tiles."""

    def see(chunks: Sequence[Any]) -> None:
        def keys(_: int) -> list[Array]:
            return [block[...] for block in pool.keys]

        def values(_: int) -> list[Array]:
            return [block[...] for block in pool.values]

        def seen(index: int) -> list[Array]:
            ends = pool.ends[chunks[index]] - pool.begins[visit]
            return [_key_numbers(sizes.block, sizes) + n * sizes.block < ends for n in range(sizes.group)]

        _add(chunks, state, queries, keys, values, seen)

    _for_chunks(pool.first[visit] * sizes.per_tile, pool.tiles[visit] * sizes.per_tile, sizes.together, see)


def _columns(head: int, sizes: _Sizes) -> slice:
    return slice(head * sizes.D, (head + 1) * sizes.D)


def _rows(chunk: Any, sizes: _Sizes) -> Any:
    return pl.ds(pl.multiple_of(chunk * sizes.rows, sizes.rows), sizes.rows)


def _key_numbers(count: int, sizes: _Sizes) -> Array:
    """Return the number of each key: int32 [count, G * R]."""
    return lax.broadcasted_iota(jnp.int32, (count, sizes.G * sizes.rows), 0)


def _for_chunks(begin: Any, count: Any, most: int, visit: Callable[[Sequence[Any]], None]) -> None:
    """Visit chunks, as many together as there are."""
    done = begin
    for size in dict.fromkeys((most, max(1, most // 4), 1)):
        times = (begin + count - done) // size

        def together(index: Any, size: int = size, done: Any = done) -> None:
            visit([done + index * size + offset for offset in range(size)])

        pl.loop(0, times)(together)
        done += times * size


def _add(
    chunks: Sequence[Any],
    state: _State,
    queries: Callable[[Any], Array],
    keys: Callable[[int], list[Array]],
    values: Callable[[int], list[Array]],
    seen: Callable[[int], list[Array]],
) -> None:
    """Add keys to the softmax of chunks.

    queries: of a chunk, [G * R, D]; keys, values: of a chunk by its index, parts of [keys, D]; seen: by the same index,
    which of these keys the chunk's rows see, parts of [keys, G * R]. The three stages of a chunk are written between
    those of its neighbours, since the compiler reorders little.
    """
    scores, weights = dict[int, list[Array]](), dict[int, tuple[list[Array], Array]]()

    def score(index: int) -> None:
        own_queries = queries(chunks[index])
        products = [_product(part, own_queries, 1, 1) for part in keys(index)]
        masks = seen(index)
        scores[index] = [jnp.where(mask, product, UNSEEN) for mask, product in zip(masks, products, strict=True)]

    def soften(index: int) -> None:
        chunk, parts = chunks[index], scores.pop(index)
        before = state.peak[chunk]
        peak = functools.reduce(jnp.maximum, [jnp.max(part, axis=0, keepdims=True) for part in parts], before)
        exponentials, shrunk = [jnp.exp2(part - peak) for part in parts], jnp.exp2(before - peak)
        sums = [jnp.sum(part, axis=0, keepdims=True) for part in exponentials]
        state.total[chunk] = state.total[chunk] * shrunk + functools.reduce(jnp.add, sums)
        state.peak[chunk] = peak
        weights[index] = [part.astype(jnp.bfloat16) for part in exponentials], shrunk

    def weigh(index: int) -> None:
        parts, shrunk = weights.pop(index)
        sums = [_product(part, weight, 0, 0) for part, weight in zip(values(index), parts, strict=True)]
        state.out[chunks[index]] = state.out[chunks[index]] * shrunk + functools.reduce(jnp.add, sums)

    ahead, behind = 3, 1
    for turn in range(-ahead, len(chunks) + behind):
        for stage, index in ((score, turn + ahead), (soften, turn), (weigh, turn - behind)):
            if 0 <= index < len(chunks):
                stage(index)


def _product(one: Array, other: Array, axis: int, other_axis: int) -> Array:
    """Return the product of two bf16 matrices that is summed over one axis of each, in float32."""
    dimensions = (((axis,), (other_axis,)), ((), ()))
    return lax.dot_general(one, other, dimensions, preferred_element_type=jnp.float32)
