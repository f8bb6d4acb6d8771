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


class Windows(NamedTuple):
    """The windows of a sequence of keys that each chunk of rows visits.

    A window has :data:`WINDOW` keys, and begins at a multiple of that. The slot of an item is a power of two and begins
    at a multiple of its length, so it lies in one window, or takes whole windows. Therefore it does not depend on other
    items how the keys of an item are divided.
    """

    numbers: Array  # int32 [chunks, windows]: in ascending order, and behind them windows that no row sees
    counts: Array  # int32 [chunks]


def active_windows(ranges: Array, rows: int, keys: int) -> Windows:
    """Return the windows that hold a key which is seen, by chunks of rows: ranges [T, N, 2] of a number of keys.

    The last chunk is filled up with rows that see nothing. ``keys`` is a multiple of a window.
    """
    ranges = jnp.pad(ranges, ((0, -len(ranges) % rows), (0, 0), (0, 0)))
    number = jnp.arange(keys // WINDOW, dtype=jnp.int32)
    begin, end = ranges[..., 0, None], ranges[..., 1, None]
    seen = (begin // WINDOW <= number) & (number * WINDOW < end) & (begin < end)  # [T, N, windows]
    active = jnp.any(seen.reshape(len(ranges) // rows, -1, len(number)), axis=1)
    order = jnp.argsort(~active, axis=1, stable=True).astype(jnp.int32)
    return Windows(order, jnp.sum(active, axis=1, dtype=jnp.int32))
