"""How often the parts of programs run that depend on their arguments, computed as the programs themselves do it.

Of kernels that project rows (:mod:`model.layers.tpu.projection`), the parts are the first turn, if it norms rows,
and the other turns for each result. The others are those of the kernel of :mod:`model.attention.tpu.kernel`, in the
order of its schedule: the steps of its grid, the windows of a sequence that rows visit, and the runs of chunks that a
visit to the pool is computed for. Its regions begin and end the softmax of a key head, once for all visits of the pool;
those in which rows get a larger reference count as never run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from model.architecture.config import DecoderConfig
from model.architecture.families import Norms
from model.attention.tpu.attention import GROUP
from model.attention.tpu.kernel import CHUNK, COLUMNS, ROWS, run_sizes
from model.attention.tpu.visits import WINDOW, Windows, active_windows, prefix_visits, slot_windows
from model.layers.tpu import gate, rotation
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
    """Return how often the parts of a called program run in a layer.

    config: what a chip computes; block_tokens: of a block of the pool.
    """
    frequencies, visits = _of_attention(call, config, block_tokens)
    return {**frequencies, **_of_projections(config)}, visits


def _of_projections(config: DecoderConfig) -> Mapping[str, float]:
    """Return the shares of the turns in which kernels project rows for each of their results."""
    outs = [heads * config.head_dim for heads in (config.query_heads, config.kv_heads, config.kv_heads)]
    turns = {
        rotation.QKV: [out // rotation.columns_of(out, config.head_dim) for out in outs],
        gate.GATE: [config.mlp_width // gate.columns_of(config.mlp_width)],
    }
    found = dict[str, float]()
    for name, counts in turns.items():
        # The first turn also norms the rows.
        parts = counts if config.traits.norms is Norms.AFTER else [1, counts[0] - 1, *counts[1:]]
        shares = [count / sum(counts) for count in parts if count]
        found |= {f"{name}/region{n}": share for n, share in enumerate(shares)} if len(shares) > 1 else {}
    return found


def _of_attention(call: Call, config: DecoderConfig, block_tokens: int) -> tuple[Frequencies, Visits]:
    heads = config.kv_heads
    together = max(1, COLUMNS // (config.query_heads // heads * CHUNK))
    match call.key:
        case ExtendKey():
            table, counts, ends, rows, begins, slots = call.arguments[-7:-1]
            own_begins = np.where(slots < len(rows), begins[np.minimum(slots, len(rows) - 1)], len(rows))
            own_ends = np.where(slots < len(rows), slots + 1, 0)
            windows = _windows(np.stack([own_begins, own_ends], axis=-1)[:, None], len(rows), slot_windows)
            visits = _Visited.of(table, counts, len(ends), block_tokens, together)
            own = [run.turns for run in _runs(windows, together)]
            of_chunks = {} if config.recurrence is None else dict.fromkeys(_LONG_CHUNKS, float(call.arguments[-8]))
            return visits.frequencies(heads, before=own) | of_chunks, Visits()
        case PrefillKey():
            table, counts, ends = call.arguments[-5:-2]
            visits = _Visited.of(table, counts, len(ends), block_tokens, together)
            return visits.frequencies(heads, before=[visits.first_references]), Visits()
        case PackedKey(tokens, _, dense):
            windows = _windows(call.arguments[-2], tokens + -tokens % WINDOW, active_windows)
            every = len(windows) * -(-tokens // WINDOW)
            if dense:
                return {}, Visits(every, every)
            runs = _runs(windows, max(1, together // 2))
            visited = sum(run.size * int(run.windows.sum()) for run in runs)
            return _numbered([run.turns for run in runs]), Visits(visited, every)
    return {}, Visits()


def _numbered(loops: Sequence[float], regions: Sequence[float] = ()) -> dict[str, float]:
    named = {f"{KERNEL}/loop{n}": turns for n, turns in enumerate(loops)}
    return named | {f"{KERNEL}/region{n}": share for n, share in enumerate(regions)}


@dataclass(frozen=True, slots=True, eq=False)
class _Visited:
    """The visits of a step to the pool."""

    begins: npt.NDArray[np.int32]  # of each visit: the first token of the prefix that it brings
    chunks: npt.NDArray[np.int32]  # of each visit: that see it
    together: int  # chunks that are computed as one run of code, at most

    @classmethod
    def of(
        cls, table: npt.NDArray[Any], counts: npt.NDArray[Any], rows: int, block_tokens: int, together: int
    ) -> _Visited:
        """List the visits of a step of so many rows."""
        visits = prefix_visits(jnp.asarray(table), jnp.asarray(counts), block_tokens, GROUP)
        made = max(int(visits.made), 1)
        chunks = np.asarray(visits.tiles)[:made] * (rows // len(table) // CHUNK)
        return cls(np.asarray(visits.begins)[:made], chunks, together)

    @property
    def first_references(self) -> float:
        """Of how many chunks a visit gives the rows their first reference, on average."""
        return float(np.mean(self.chunks * (self.begins == 0)))

    def frequencies(self, heads: int, *, before: Sequence[float]) -> dict[str, float]:
        """Return how often the parts of the kernel run; before: its loops between a key head's beginning and visits."""
        turns, left = list[float](), self.chunks
        sizes = run_sizes(self.together)
        for size in sizes:
            turns += [float(np.mean(left // size)), 1.0]  # each run once: no row needs a larger reference
            left = left % size
        once = 1 / len(self.chunks)
        regions = [once, *[0.0] * len(sizes), once]
        return _numbered([heads * len(self.chunks), *before, *turns], regions)


def _windows(
    ranges: npt.NDArray[Any], keys: int, listed: Callable[[Array, int, int], Windows]
) -> npt.NDArray[np.int32]:
    """Return how many windows of keys each chunk of rows visits."""
    rows = ROWS if len(ranges) > ROWS else CHUNK
    padded = np.pad(ranges, ((0, -len(ranges) % rows), (0, 0), (0, 0)))
    return np.asarray(listed(jnp.asarray(padded), CHUNK, keys).counts)


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
    for size in run_sizes(most):
        taken = left.shape[1] // size * size
        if taken:
            found.append(_Runs(size, left[:, :taken].reshape(-1, size).max(axis=1)))
        left = left[:, taken:]
    return found
