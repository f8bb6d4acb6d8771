"""The attention kernel of whole steps: rows of a step, the blocks of their prefixes in a pool, and a sequence of keys.

The grid is one key head after another, and for each of them one visit after another
(:mod:`model.attention.tpu.visits`). The rows of a step and the state of their softmax stay in the chip's fast memory
while a key head's visits are made, so each block of the pool is read once for all tiles that see it. Blocks are read
where they are: the list of visits, which is in scalar memory before the kernel starts, says which block comes next, and
it is copied while the kernel computes.

Scores are computed as [keys, rows]: the references and sums of rows then lie along lanes, and the product of values and
weights fills the whole matrix unit (:mod:`model.attention.tpu.softmax`).
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
from model.attention.tpu.softmax import FIRST_KEYS, UNSEEN, Keys, Softmax, add, add_relative, refer
from model.attention.tpu.visits import ALIGNED, WINDOW, PrefixVisits, Windows
from model.layers.tpu.projection import padded_bytes

ROWS = 2048
"""Rows of a packed sequence that are in fast memory at a time. Of a step, all rows are."""

CHUNK = 128
"""Rows that are computed at a time, with all query heads of a key head: a tile of the matrix unit is 256 wide."""

COLUMNS = 4096
"""Columns of scores, rows times query heads, that are computed as one run of code. The compiler overlaps the products
of one chunk with the softmax of another only within such a run."""

_SPILLED = 1.25, 8 << 20
"""How many times the bytes of its arrays the kernel may take of fast memory, and how many more, for scores that do not
fit into registers. Chips from v5e on have 128 MiB, and XLA can't keep other arrays in what a kernel may take."""


class Pool(NamedTuple):
    """The prefixes of a step: where their keys and values are, and what the step sees of them."""

    keys: Array  # [L, K, B, s, D]
    values: Array  # [L, K, B, s, D]
    layer: Array  # int32 []
    visits: PrefixVisits
    ends: Array  # int32 [chunks, 1, R]: of :func:`by_chunk`; a row sees so many tokens of its prefix, from the first on
    tile_rows: int  # so many rows have the same prefix; a multiple of a chunk, or less than a chunk


class Ranged(NamedTuple):
    """Keys and values in one piece: of a step's items in their slots, or of a packed sequence."""

    keys: Array  # [S, K, D]
    values: Array  # [S, K, D]
    ranges: Array
    """int32 [chunks, 2 * N, R], of :func:`by_chunk`: begin and end of N disjoint ranges in turn. A row sees key k if
    ``begin <= k < end`` for any of them."""
    windows: Windows


@dataclass(frozen=True)
class _Sizes:
    chunks: int  # of the rows of one turn of the grid
    rows: int  # R: of a chunk
    per_tile: int  # chunks of a tile
    G: int  # query heads of a key head
    D: int
    block: int  # s: tokens of a block of the pool
    group: int  # blocks of a visit
    together: int  # chunks that are computed as one run of code


def attend(
    queries: Array,
    pool: Pool | None,
    ranged: Ranged | None,
    *,
    scale: float,
    columns: int = COLUMNS,
    interpret: Any = False,
) -> AttentionOutput:
    """Return attention of queries [T, H, D] to the tokens of their prefixes, and to those of a sequence.

    Queries, keys, values and the output are bf16, and so are the operands of all products; sums are float32. Scores are
    multiplied by ``scale``. ``columns`` is at most :data:`COLUMNS`; tests take less. ``interpret`` is the parameter of
    the same name of ``pallas_call``.
    """
    T, H, D = queries.shape
    K = next(part.keys.shape[1] for part in (pool, ranged) if part is not None)
    sizes = _sizes(T, H // K, D, columns, pool)
    if not interpret and (sizes.rows * sizes.G) % 128:
        raise ValueError(f"{sizes.rows} rows of {sizes.G} heads are no whole number of lanes")
    parts = -(-T // (sizes.chunks * sizes.rows))  # the last of which may have fewer rows
    width = sizes.rows * sizes.G
    of_head = pl.BlockSpec((sizes.chunks * sizes.rows, sizes.G * D), lambda head, part, *_: (part, head))
    scalars: list[Array] = []
    arrays, specs = [queries.astype(jnp.bfloat16).reshape(T, H * D)], [of_head]
    turns: Array | int = 1
    if pool is not None:
        visits = pool.visits
        scalars += [pool.layer[None], visits.blocks, visits.begins, visits.first, visits.tiles]
        turns = jnp.maximum(visits.made, 1)
        arrays += [pool.ends, *[pool.keys] * sizes.group]
        arrays += [pool.values] * sizes.group
        specs += [_of_rows(1, sizes), *[_block_spec(number, sizes) for number in range(sizes.group)] * 2]
    if ranged is not None:
        scalars += list(ranged.windows)
        arrays += [ranged.ranges]
        arrays += [part.reshape(len(part), K * D) for part in (ranged.keys, ranged.values)]
        of_keys = pl.BlockSpec((len(ranged.keys), D), lambda head, *_: (0, head))
        specs += [_of_rows(ranged.ranges.shape[1], sizes), of_keys, of_keys]

    def of_rows(chunks: int, numbers: int) -> Any:
        return pltpu.VMEM((chunks, numbers, width), jnp.float32)

    scratch = [
        of_rows(sizes.chunks, 1),
        of_rows(sizes.chunks, 1),
        of_rows(sizes.chunks, D),
        pltpu.VMEM((sizes.chunks * sizes.rows, sizes.G * D), jnp.bfloat16),
        *([] if pool is None else [of_rows(sizes.together, 1), of_rows(sizes.together, D)]),
    ]
    of_sums = pl.BlockSpec((None, sizes.chunks, 1, width), lambda head, part, *_: (head, part, 0, 0))
    results = [
        jax.ShapeDtypeStruct((T, H * D), jnp.bfloat16),  # type: ignore[no-untyped-call]
        jax.ShapeDtypeStruct((K, parts * sizes.chunks, 1, width), jnp.float32),  # type: ignore[no-untyped-call]
    ]
    dtypes = [array.dtype for array in arrays] + [result.dtype for result in results]
    blocks = zip(dtypes, (*specs, of_head, of_sums), strict=True)
    taken = 2 * sum(padded_bytes(spec.block_shape, dtype) for dtype, spec in blocks)
    taken += sum(padded_bytes(one.shape, one.dtype) for one in scratch)
    out, log_sum_exp = pl.pallas_call(
        functools.partial(
            _kernel, sizes=sizes, scale=scale * math.log2(math.e), behind=pool is not None, within=ranged is not None
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(K, parts, turns),
            in_specs=specs,
            out_specs=[of_head, of_sums],
            scratch_shapes=scratch,
        ),
        out_shape=results,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=int(_SPILLED[0] * taken) + _SPILLED[1],
        ),
        interpret=interpret,
        name="scoreline_attention",
    )(*scalars, *arrays)
    by_row = log_sum_exp.reshape(K, -1, sizes.G, sizes.rows).transpose(1, 3, 0, 2).reshape(-1, H)
    return AttentionOutput(out.reshape(T, H, D), by_row[:T])


def _sizes(T: int, G: int, D: int, columns: int, pool: Pool | None) -> _Sizes:
    rows = min(CHUNK, T if pool is None else pool.tile_rows)
    together = max(1, columns // (G * rows))
    if pool is None:
        # A run visits as many windows as one of its chunks must, so long runs visit more in vain.
        return _Sizes(min(-(-T // rows), ROWS // CHUNK), rows, 1, G, D, 0, 0, max(1, together // 2))
    if T % rows or pool.tile_rows % rows:
        raise ValueError(f"{T} rows in tiles of {pool.tile_rows} are no whole number of chunks of {rows}")
    return _Sizes(T // rows, rows, pool.tile_rows // rows, G, D, pool.keys.shape[3], len(pool.visits.blocks), together)


def _block_spec(number: int, sizes: _Sizes) -> pl.BlockSpec:
    """Return where the pool's block of a visit is, by its number in the visit's group."""

    def place(head: Any, part: Any, visit: Any, layer: Any, blocks: Any, *_: Any) -> tuple[Any, ...]:
        return layer[0], head, blocks[number, visit], 0, 0

    return pl.BlockSpec((None, None, None, sizes.block, sizes.D), place)


def _of_rows(numbers: int, sizes: _Sizes) -> pl.BlockSpec:
    """Return where the numbers are that :func:`by_chunk` has ordered."""
    return pl.BlockSpec((sizes.chunks, numbers, sizes.rows), lambda head, part, *_: (part, 0, 0))


def by_chunk(of_rows: Array, rows: int) -> Array:
    """Return numbers of each row, [T, n], as [chunks, n, R]. T is a multiple of the rows of a chunk."""
    ordered = of_rows.reshape(-1, rows, of_rows.shape[1]).swapaxes(1, 2)
    # Without the barrier, the compiler orders them again in every layer.
    found: Array = lax.optimization_barrier(ordered)  # type: ignore[no-untyped-call]
    return found


class _PoolRefs(NamedTuple):
    """What a visit to the pool reads."""

    begins: Any  # of :class:`model.attention.tpu.visits.PrefixVisits`
    first: Any
    tiles: Any
    ends: Any  # of :class:`Pool`
    keys: Sequence[Any]  # the blocks of the visit: [s, D] each
    values: Sequence[Any]


class _RangedRefs(NamedTuple):
    """What rows read to see a sequence."""

    starts: Any  # of :class:`model.attention.tpu.visits.Windows`
    counts: Any
    ranges: Any  # of :class:`Ranged`
    keys: Any  # [S, D]
    values: Any


def _kernel(*refs: Any, sizes: _Sizes, scale: float, behind: bool, within: bool) -> None:
    """Make one visit: ``refs`` are the scalars and arrays of :func:`attend`, its two results, and the state.

    ``scale`` is that of scores in powers of two.
    """
    left = iter(refs)

    def take(count: int) -> list[Any]:
        return [next(left) for _ in range(count)]

    _, _, begins, first, tiles = take(5) if behind else [None] * 5
    windows = take(2) if within else []
    (queries,) = take(1)
    pool = _PoolRefs(begins, first, tiles, next(left), take(sizes.group), take(sizes.group)) if behind else None
    ranged = _RangedRefs(*windows, *take(3)) if within else None
    out, log_sum_exp = take(2)
    state = Softmax(*take(3))
    (scaled,) = take(1)
    before = take(2) if behind else []

    def chunk_queries(chunk: Any) -> Array:
        heads = [scaled[_rows(chunk, sizes), _columns(head, sizes)] for head in range(sizes.G)]
        return jnp.concatenate(heads)

    visit = pl.program_id(2)

    @pl.when(visit == 0)
    def begin() -> None:
        state.reference[...] = jnp.full_like(state.reference, UNSEEN)
        state.total[...] = jnp.zeros_like(state.total)
        state.out[...] = jnp.zeros_like(state.out)

        @pl.loop(0, sizes.chunks)
        def multiply(chunk: Any) -> None:
            rows = _rows(chunk, sizes)
            scaled[rows, :] = (queries[rows, :].astype(jnp.float32) * scale).astype(jnp.bfloat16)

        if ranged is not None:
            _see_windows(ranged, pl.program_id(1) * sizes.chunks, state, chunk_queries, sizes)

    if pool is not None:
        if ranged is None:
            _refer_to_first(pool, visit, state, chunk_queries, sizes)
        _see_blocks(pool, visit, state, Softmax(None, *before), chunk_queries, sizes)

    @pl.when(visit == pl.num_programs(2) - 1)
    def end() -> None:
        @pl.loop(0, sizes.chunks)
        def write(chunk: Any) -> None:
            blind = state.reference[chunk] < UNSEEN / 2  # not so of what is no number, which must stay so
            total = jnp.where(blind, 1.0, state.total[chunk])
            attended = jnp.where(blind, 0.0, state.out[chunk] / total)  # [D, G * R]
            for head in range(sizes.G):
                of_head = attended[:, head * sizes.rows : (head + 1) * sizes.rows]
                out[_rows(chunk, sizes), _columns(head, sizes)] = of_head.astype(jnp.bfloat16).T
            natural = (state.reference[chunk] + jnp.log2(total)) * math.log(2)
            log_sum_exp[chunk] = jnp.where(blind, -jnp.inf, natural)


def _see_windows(
    ranged: _RangedRefs, first_chunk: Any, state: Softmax, queries: Callable[[Any], Array], sizes: _Sizes
) -> None:
    """Add the keys of the windows that the chunks see. ``first_chunk`` is the number of chunk 0 in the lists."""

    def see(chunks: Sequence[Any]) -> None:
        def window(number: Any) -> None:
            def of_chunk(chunk: Any) -> Keys:
                start = pl.multiple_of(ranged.starts[first_chunk + chunk, number], ALIGNED)
                at = pl.ds(start, WINDOW)

                def seen() -> list[Array]:
                    positions, bounds = start + _key_numbers(WINDOW, sizes), _of_heads(ranged.ranges[chunk], sizes)
                    inside = [
                        (bounds[n : n + 1] <= positions) & (positions < bounds[n + 1 : n + 2])
                        for n in range(0, len(bounds), 2)
                    ]
                    return [functools.reduce(jnp.logical_or, inside)]

                return Keys([lambda: ranged.keys[at, :]], [lambda: ranged.values[at, :]], seen)

            add(chunks, state, queries, of_chunk)

        pl.loop(0, functools.reduce(jnp.maximum, [ranged.counts[first_chunk + chunk] for chunk in chunks]))(window)

    _for_chunks(0, sizes.chunks, sizes.together, see)


def _see_blocks(
    pool: _PoolRefs, visit: Any, state: Softmax, before: Softmax, queries: Callable[[Any], Array], sizes: _Sizes
) -> None:
    """Add the keys of the pool's blocks of a visit to its tiles."""

    def of_chunk(chunk: Any) -> Keys:
        def seen() -> list[Array]:
            ends = _of_heads(pool.ends[chunk], sizes) - pool.begins[visit]
            return [_key_numbers(sizes.block, sizes) + n * sizes.block < ends for n in range(sizes.group)]

        keys, values = ([functools.partial(_whole, block) for block in blocks] for blocks in (pool.keys, pool.values))
        return Keys(keys, values, seen)

    def see(chunks: Sequence[Any]) -> None:
        add_relative(chunks, state, before, queries, of_chunk)

    _for_chunks(*_chunks_of(pool, visit, sizes), sizes.together, see)


def _refer_to_first(
    pool: _PoolRefs, visit: Any, state: Softmax, queries: Callable[[Any], Array], sizes: _Sizes
) -> None:
    """Give the rows of a visit to the beginning of a prefix their first reference."""

    @pl.when(pool.begins[visit] == 0)
    def begins() -> None:
        first, count = _chunks_of(pool, visit, sizes)

        @pl.loop(0, count)
        def of_chunk(number: Any) -> None:
            chunk = first + number
            seen = _key_numbers(FIRST_KEYS, sizes) < _of_heads(pool.ends[chunk], sizes)
            refer(chunk, state, queries(chunk), pool.keys[0][:FIRST_KEYS, :], seen)


def _chunks_of(pool: _PoolRefs, visit: Any, sizes: _Sizes) -> tuple[Any, Any]:
    """Return the first of a visit's chunks, and how many there are."""
    return pool.first[visit] * sizes.per_tile, pool.tiles[visit] * sizes.per_tile


def _whole(block: Any) -> Array:
    whole: Array = block[...]
    return whole


def _columns(head: int, sizes: _Sizes) -> slice:
    return slice(head * sizes.D, (head + 1) * sizes.D)


def _rows(chunk: Any, sizes: _Sizes) -> Any:
    return pl.ds(pl.multiple_of(chunk * sizes.rows, sizes.rows), sizes.rows)


def _of_heads(of_rows: Array, sizes: _Sizes) -> Array:
    """Return numbers of each row, [n, R], once for each query head: [n, G * R]."""
    return jnp.concatenate([of_rows] * sizes.G, axis=1)


def _key_numbers(count: int, sizes: _Sizes) -> Array:
    """Return the number of each key: int32 [count, G * R]."""
    return lax.broadcasted_iota(jnp.int32, (count, sizes.G * sizes.rows), 0)


def run_sizes(most: int) -> tuple[int, ...]:
    """Return how many chunks are computed as one run of code: as many as possible, or fewer for those that are left."""
    return tuple(size for size in dict.fromkeys((most, most // 4, 2, 1)) if 0 < size <= most)


def _for_chunks(begin: Any, count: Any, most: int, visit: Callable[[Sequence[Any]], None]) -> None:
    """Visit chunks, as many together as there are."""
    done = begin
    for size in run_sizes(most):
        times = (begin + count - done) // size

        def together(index: Any, size: int = size, done: Any = done) -> None:
            visit([done + index * size + offset for offset in range(size)])

        pl.loop(0, times)(together)
        done += times * size
