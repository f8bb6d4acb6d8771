"""How often the parts of programs run that depend on their arguments, computed as the programs themselves do it.

The parts are those of the kernel of :mod:`model.attention.tpu.kernel`, in the order of its schedule: the steps of its
grid, the windows of a sequence that rows visit, and the runs of chunks that a visit to the pool is computed for. Its
regions begin and end the softmax of a key head, once for all visits of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from model.architecture.config import DecoderConfig
from model.attention.tpu.attention import GROUP
from model.attention.tpu.kernel import CHUNK, COLUMNS, ROWS
from model.attention.tpu.visits import WINDOW, active_windows, prefix_visits
from model.whole_steps.extend import ExtendKey
from model.whole_steps.packed import PackedKey
from model.whole_steps.prefill import PrefillKey
from model.whole_steps.recurrence import LONG_CHUNKS
from tools.tpu.cost import Frequencies
from tools.tpu.programs import Call

KERNEL = "scoreline_attention"
_LONG_CHUNKS = tuple(
    f"{chips}{before}/body/{LONG_CHUNKS}/while"
    for chips in ("", "shard_map/")
    for before in ("while", "while/body/while")
)
"""The loops over chunks of long items: before the last layer with attention, and before the others."""


@dataclass(frozen=True, slots=True)
class Visits:
    """Tiles of 128 queries and 256 keys of packed sequences."""

    tiles: int = 0  # that are computed, also for chunks that are computed together with one that must
    all_tiles: int = 0

    def __add__(self, other: Visits) -> Visits:
        return Visits(self.tiles + other.tiles, self.all_tiles + other.all_tiles)


def frequencies_of(call: Call, config: DecoderConfig, block_tokens: int) -> tuple[Frequencies, Visits]:
    """Return how often the parts of a called program run in a layer; block_tokens: of a block of the pool."""
    heads = config.kv_heads
    together = max(1, COLUMNS // (config.query_heads // heads * CHUNK))
    match call.key:
        case ExtendKey():
            table, counts, ends, rows, begins, slots = call.arguments[-7:-1]
            own_begins = np.where(slots < len(rows), begins[np.minimum(slots, len(rows) - 1)], len(rows))
            own_ends = np.where(slots < len(rows), slots + 1, 0)
            windows = _windows(np.stack([own_begins, own_ends], axis=-1)[:, None], len(rows))
            grid, *chunks = _visits(table, counts, len(ends), block_tokens, heads, together)
            own = [run.turns for run in _runs(windows, together)]
            of_chunks = {} if config.recurrence is None else dict.fromkeys(_LONG_CHUNKS, float(call.arguments[-8]))
            return _numbered([grid, *own, *chunks], regions=heads / grid) | of_chunks, Visits()
        case PrefillKey():
            table, counts, ends = call.arguments[-5:-2]
            grid, *chunks = _visits(table, counts, len(ends), block_tokens, heads, together)
            return _numbered([grid, *chunks], regions=heads / grid), Visits()
        case PackedKey(tokens, _, dense):
            windows = _windows(call.arguments[-2], tokens)
            every = len(windows) * -(-tokens // WINDOW)
            if dense:
                return {}, Visits(every, every)
            runs = _runs(windows, together)
            visited = sum(run.size * int(run.windows.sum()) for run in runs)
            return _numbered([run.turns for run in runs]), Visits(visited, every)
    return {}, Visits()


def _numbered(loops: list[float], regions: float | None = None) -> dict[str, float]:
    named = {f"{KERNEL}/loop{n}": turns for n, turns in enumerate(loops)}
    return named if regions is None else named | {f"{KERNEL}/region0": regions, f"{KERNEL}/region1": regions}


def _visits(
    table: npt.NDArray[Any], counts: npt.NDArray[Any], rows: int, block_tokens: int, heads: int, together: int
) -> Iterator[float]:
    """Yield the turns of the grid, and the mean turns over as many chunks as are computed together, and over fewer."""
    visits = prefix_visits(jnp.asarray(table), jnp.asarray(counts), block_tokens, GROUP)
    made = int(visits.made)
    yield heads * max(made, 1)
    left = np.asarray(visits.tiles)[: max(made, 1)] * (rows // len(table) // CHUNK)
    for size in dict.fromkeys((together, max(1, together // 4), 1)):
        yield float(np.mean(left // size))
        left = left % size


def _windows(ranges: npt.NDArray[Any], keys: int) -> npt.NDArray[np.int32]:
    """Return how many windows of keys each chunk of rows visits."""
    rows = ROWS if len(ranges) > ROWS else CHUNK
    padded = np.pad(ranges, ((0, -len(ranges) % rows), (0, 0), (0, 0)))
    return np.asarray(active_windows(jnp.asarray(padded), CHUNK, keys + -keys % WINDOW).counts)


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Runs of chunks that are computed together. A run visits as many windows as one of its chunks must."""

    size: int  # chunks of a run
    windows: npt.NDArray[np.int32]  # that each run visits

    @property
    def turns(self) -> float:
        """The mean turns of the loop over windows."""
        return float(self.windows.mean())


def _runs(windows: npt.NDArray[np.int32], most: int) -> list[_Runs]:
    """Return the runs of chunks that visit so many windows each: the longest runs, and those of what they leave.

    The chunks of a turn of the grid are taken ``most`` at a time, and then fewer.
    """
    left, found = windows.reshape(-1, min(len(windows), ROWS // CHUNK)), []
    for size in dict.fromkeys((most, max(1, most // 4), 1)):
        taken = left.shape[1] // size * size
        if taken:
            found.append(_Runs(size, left[:, :taken].reshape(-1, size).max(axis=1)))
        left = left[:, taken:]
    return found
