"""Which blocks of keys each tile of queries visits, as lists that a kernel reads while it runs."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax


class PrefixVisits(NamedTuple):
    """The visits of a step to its prefixes, in the order in which a kernel makes them.

    A visit brings a group of blocks to a run of adjacent tiles. Tiles whose prefixes have the same blocks share their
    visits. Every tile sees the groups of its prefix in the order of their positions.
    """

    blocks: Array  # int32 [blocks of a group, V]: the blocks of the pool, and block 0 behind the end of a prefix
    begins: Array  # int32 [V]: the position of the group's first token in its prefix
    first: Array  # int32 [V]: the first tile
    tiles: Array  # int32 [V]: how many tiles; 0 in the entries behind ``made``
    made: Array  # int32 []: how many visits there are


def prefix_visits(table: Array, counts: Array, block: int, group: int) -> PrefixVisits:
    """Return the visits for a table of blocks.

    table: int32 [tiles, N], the blocks of each tile's prefix in order, and block 0 behind them; counts: int32 [tiles],
    how many of the blocks each tile sees; block: tokens of a block; group: blocks of a visit.
    """
    tiles, N = table.shape
    table = jnp.pad(table, ((0, 0), (0, -N % group)))
    groups = table.reshape(tiles, -1, group).swapaxes(0, 1)  # [groups, tiles, blocks of a group]
    number = jnp.arange(groups.shape[0], dtype=jnp.int32)[:, None]
    active = number * group < counts  # [groups, tiles]
    same = jnp.all(groups[:, 1:] == groups[:, :-1], axis=-1) & active[:, 1:] & active[:, :-1]
    continues = jnp.pad(same, ((0, 0), (1, 0)))
    opens = active & ~continues
    # The tiles of a visit that begins at tile i: those up to the next tile that does not continue it.
    tile = jnp.arange(tiles, dtype=jnp.int32)
    stops = jnp.where(jnp.pad(continues[:, 1:], ((0, 0), (0, 1))), tiles, tile + 1)
    ends = lax.cummin(stops, axis=1, reverse=True)
    made = jnp.sum(opens, dtype=jnp.int32)
    (places,) = jnp.nonzero(opens.reshape(-1), size=opens.size, fill_value=0)
    places = places.astype(jnp.int32)
    lengths = (ends - tile).reshape(-1)[places]
    return PrefixVisits(
        groups.reshape(-1, group)[places].T,
        places // tiles * (group * block),
        places % tiles,
        jnp.where(jnp.arange(opens.size) < made, lengths, 0),
        made,
    )


WINDOW = 256
"""Keys of a window: see :class:`Windows`."""

ALIGNED = 16
"""A window begins at a multiple of so many keys, which a row of registers holds in bf16."""


class Windows(NamedTuple):
    """The windows of a sequence of keys that each chunk of rows visits, :data:`WINDOW` keys each.

    Those of a packed sequence begin at multiples of a window. Those of items in slots begin where the first slot does
    that a chunk sees, or half a row of registers before, if that slot and all others have only half a row.

    It must not depend on other items how the keys of an item are divided, nor where in a window they are but for
    multiples of its slot. That is so because slots lie from the longest to the shortest, and each begins at a multiple
    of its length, a power of two: counted from a longer slot, the others do so, too, and windows cut none in two unless
    it takes whole ones.
    """

    starts: Array  # int32 [chunks, windows]: the first key of each, ascending, and behind them of windows nobody sees
    counts: Array  # int32 [chunks]


def active_windows(ranges: Array, rows: int, keys: int) -> Windows:
    """Return the windows of a packed sequence that hold a key which is seen, by chunks of rows.

    ranges: [T, N, 2] of a number of keys, a multiple of a window. The last chunk is filled up with rows that see
    nothing.
    """
    return _windows(_of_chunks(ranges, rows), jnp.int32(0), keys)


def slot_windows(ranges: Array, rows: int, keys: int) -> Windows:
    """Return the same of slots, behind whose ``keys`` comes a window that nobody sees."""
    of_chunks = _of_chunks(ranges, rows)
    begin, end = of_chunks[..., 0], of_chunks[..., 1]
    first = jnp.min(jnp.where(begin < end, begin, keys), axis=1) // ALIGNED * ALIGNED  # [chunks]
    starts, counts = _windows(of_chunks, first[:, None], keys)
    return Windows(jnp.where(jnp.arange(starts.shape[1]) < counts[:, None], starts, keys), counts)


def _of_chunks(ranges: Array, rows: int) -> Array:
    padded = jnp.pad(ranges, ((0, -len(ranges) % rows), (0, 0), (0, 0)))
    return padded.reshape(-1, rows * ranges.shape[1], 2)


def _windows(of_chunks: Array, first: Array, keys: int) -> Windows:
    """Return active windows from a first key on; of_chunks: ranges [chunks, n, 2]; first: [] or [chunks, 1]."""
    start = first + jnp.arange(-(-keys // WINDOW), dtype=jnp.int32) * WINDOW
    begin, end = of_chunks[..., 0, None], of_chunks[..., 1, None]
    seen = (begin < start[..., None, :] + WINDOW) & (start[..., None, :] < end) & (begin < end)
    active = jnp.any(seen, axis=1)  # [chunks, windows]
    order = jnp.argsort(~active, axis=1, stable=True).astype(jnp.int32)
    return Windows(first + order * WINDOW, jnp.sum(active, axis=1, dtype=jnp.int32))
