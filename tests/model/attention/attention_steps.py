"""Small steps for kernels of attention, and what attention to them is in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from model.attention.contract import AttentionOutput, ItemSlots, StepPrefixes
from model.attention.tpu.attention import TPUAttention

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Operands = npt.NDArray[Any]
"""Of bf16. NumPy changes and compares what kernels take and give: each operation of jax would be another program."""
Scale = Callable[[Operands], Floats]

BF16 = jnp.dtype(jnp.bfloat16)
H, K, D = 4, 2, 16
BLOCK, BLOCKS, LAYERS = 16, 9, 2

quickly = partial(jax.jit, compiler_options={"xla_backend_optimization_level": "0"})
"""Compile in less time what interprets a kernel or is compared with float64. No worker compiles functions like this."""

INTERPRETED = TPUAttention(interpret=pltpu.InterpretParams(detect_races=True), columns=64, lanes=D)
"""The kernels without a TPU. Two chunks of 16 rows are one run of code, so steps of five chunks take all the ways."""

INTERPRETED_ITEMS = replace(INTERPRETED, columns=512)
"""The same with two chunks of 128 rows."""

NARROW_ITEMS = replace(INTERPRETED_ITEMS, lanes=2 * D)
"""The same for a pool in which a head takes twice the numbers that it has."""

TOLERANCE = 0.02  # of bf16, besides the last bit of a result: a relative 2**-7
"""Of results between about -3 and 3, whose weights are rounded to bf16."""


def of_prefixes(queries: Any, pool_keys: Any, pool_values: Any, layer: Any, *tiles: Any) -> AttentionOutput:
    """Return attention to the prefixes of a step: tiles are those of ``attention.prefix``."""
    attend = INTERPRETED.prefix(StepPrefixes(pool_keys.shape[3], *tiles))
    return attend(queries, pool_keys, pool_values, layer)


def of_items(
    queries: Any, keys: Any, values: Any, items: ItemSlots, pool_keys: Any, pool_values: Any, layer: Any, *tiles: Any
) -> AttentionOutput:
    """Return attention of the items of a step, whose heads fill half the lanes; tiles: of ``attention.extension``."""
    pool = [jnp.pad(part, [(0, 0)] * 4 + [(0, D)]) for part in (pool_keys, pool_values)]
    attend = NARROW_ITEMS.extension(items, StepPrefixes(pool_keys.shape[3], *tiles))
    return attend(queries, keys, values, pool[0], pool[1], layer)


def of_packed(queries: Any, keys: Any, values: Any, ranges: Any) -> AttentionOutput:
    """Return attention of a packed sequence."""
    return INTERPRETED_ITEMS.packed(ranges)(queries, keys, values)


def races_found(outputs: object) -> bool:
    """Return whether the kernel with these outputs, the last one, has read what another part of it was writing."""
    jax.device_get(outputs)  # until then it may not have begun
    races = interpret_pallas_call.races
    assert races is not None
    return bool(races.races_found)


def computed(program: Callable[..., AttentionOutput], *arguments: Any) -> AttentionOutput:
    """Return what a program gives as arrays of NumPy."""
    return AttentionOutput(*jax.device_get(program(*arguments)))


def random_bf16(random: np.random.RandomState, *shape: int) -> Operands:
    return (random.standard_normal(shape) * 1.5).astype(BF16)


def scaled_for_tpus(queries: Operands) -> Floats:
    """Return the queries that a TPU's kernel takes: scaled to powers of two, and then rounded."""
    scale = np.float32(D**-0.5 * math.log2(math.e))
    rounded = (queries.astype(np.float32) * scale).astype(BF16)
    found: Floats = rounded.astype(np.float64) * math.log(2)
    return found


def scaled(queries: Operands) -> Floats:
    """Return queries that are scaled without rounding."""
    found: Floats = queries.astype(np.float64) * D**-0.5
    return found


class Expected(NamedTuple):
    """Attention in float64: as :class:`model.attention.contract.AttentionOutput`."""

    out: Floats
    log_sum_exp: Floats


@dataclass(frozen=True)
class Prefixes:
    """Tiles of rows behind prefixes in a pool."""

    queries: Operands  # [T, H, D]
    pool_keys: Operands
    pool_values: Operands
    layer: np.int32
    table: Ints
    counts: Ints
    ends: Ints

    @classmethod
    def of(cls, table: Sequence[Sequence[int]], ends: Sequence[Sequence[int]], seed: int = 0) -> Prefixes:
        """Make a step with the blocks of each tile, and what the rows of each tile see."""
        random = np.random.RandomState(seed)
        width = max(map(len, table))
        blocks = np.array([[*row, *[0] * (width - len(row))] for row in table], np.int32)
        keys, values = (random_bf16(random, LAYERS, K, BLOCKS, BLOCK, D) for _ in range(2))
        rows = np.array(ends, np.int32)
        queries = random_bf16(random, rows.size, H, D)
        counts = -(-rows.max(axis=1) // BLOCK)
        return cls(queries, keys, values, np.int32(1), blocks, counts.astype(np.int32), rows.reshape(-1))

    @property
    def arguments(self) -> tuple[Any, ...]:
        pool = self.pool_keys, self.pool_values, self.layer
        return (self.queries, *pool, self.table, self.counts, self.ends)

    def expected(self, scale: Scale = scaled_for_tpus) -> Expected:
        tiles = len(self.table)
        rows = len(self.queries) // tiles
        out, log_sum_exp = np.zeros(self.queries.shape), np.full(self.queries.shape[:2], -np.inf)
        keys, values = (np.asarray(part[self.layer], np.float64) for part in (self.pool_keys, self.pool_values))
        for tile, blocks in enumerate(self.table):
            of_tile = slice(tile * rows, tile * rows + rows)
            prefix = [np.concatenate([part[:, block] for block in blocks], axis=1) for part in (keys, values)]
            seen = np.arange(prefix[0].shape[1]) < self.ends[of_tile, None]
            out[of_tile], log_sum_exp[of_tile] = oracle(scale(self.queries[of_tile]), prefix[0], prefix[1], seen)
        return Expected(out, log_sum_exp)


@dataclass(frozen=True)
class Items:
    """Items of a step, each of which sees itself."""

    queries: Operands  # [T, H, D]
    keys: Operands
    values: Operands
    slots: ItemSlots
    begins: Ints  # [T]: the first row of each row's item, or T

    @classmethod
    def of(cls, lengths: Sequence[int], T: int, S: int, seed: int = 0) -> Items:
        """Make a step of items, which are dense, and in slots from the longest to the shortest."""
        random = np.random.RandomState(seed)
        queries, keys, values = (random_bf16(random, T, heads, D) for heads in (H, K, K))
        slot_lengths = [max(8, 1 << math.ceil(math.log2(length))) for length in lengths]
        rows, begins, slots = np.zeros(S, np.int32), np.full(S, S, np.int32), np.full(T, S, np.int32)
        firsts, slot = np.full(T, T, np.int32), 0
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        for item in sorted(range(len(lengths)), key=lambda item: -slot_lengths[item]):
            start, length = starts[item], lengths[item]
            rows[slot : slot + length] = slice_rows = np.arange(start, start + length)
            begins[slot : slot + length] = slot
            slots[slice_rows] = np.arange(slot, slot + length)
            firsts[slice_rows] = start
            slot += slot_lengths[item]
        assert slot <= S
        placed = ItemSlots(jnp.asarray(rows), jnp.asarray(begins), jnp.asarray(slots))
        return cls(queries, keys, values, placed, firsts)

    def expected(self, scale: Scale = scaled_for_tpus) -> Expected:
        T = len(self.queries)
        seen = (self.begins[:, None] <= np.arange(T)) & (np.arange(T) <= np.arange(T)[:, None])
        keys, values = (np.asarray(part, np.float64).swapaxes(0, 1) for part in (self.keys, self.values))
        return oracle(scale(self.queries), keys, values, seen)


@dataclass(frozen=True)
class Extension:
    """Items behind prefixes in a pool."""

    items: Items
    prefixes: Prefixes  # whose queries are those of the items

    @classmethod
    def of(cls, lengths: Sequence[int], T: int, S: int, ends: Ints, seed: int = 0) -> Extension:
        """Make a step of tiles of 128 rows, of which every second one sees the same prefix."""
        items = Items.of(lengths, T, S, seed)
        tables = [[3, 1, 4], [7, 2, 5]] * T
        prefixes = Prefixes.of(tables[: T // 128], ends.reshape(-1, 128).tolist(), seed)
        return cls(items, replace(prefixes, queries=items.queries))

    @property
    def arguments(self) -> tuple[Any, ...]:
        items = self.items
        return (items.queries, items.keys, items.values, items.slots, *self.prefixes.arguments[1:])

    def expected(self, scale: Scale = scaled_for_tpus) -> Expected:
        parts = self.items.expected(scale), self.prefixes.expected(scale)
        log_sum_exp = np.logaddexp(parts[0].log_sum_exp, parts[1].log_sum_exp)
        whole = np.where(np.isfinite(log_sum_exp), log_sum_exp, 0)
        weighted = (part.out * np.exp(part.log_sum_exp - whole)[..., None] for part in parts)
        return Expected(sum(weighted, np.zeros(())), log_sum_exp)


@dataclass(frozen=True)
class Packed:
    """A packed sequence: rows that see two ranges of it."""

    queries: Operands  # [T, H, D]
    keys: Operands
    values: Operands
    ranges: Ints  # [T, 2, 2]

    @classmethod
    def of(cls, ranges: Ints, seed: int = 0) -> Packed:
        random, T = np.random.RandomState(seed), len(ranges)
        queries, keys, values = (random_bf16(random, T, heads, D) for heads in (H, K, K))
        return cls(queries, keys, values, ranges)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.queries, self.keys, self.values, self.ranges

    def expected(self, scale: Scale = scaled_for_tpus) -> Expected:
        positions = np.arange(len(self.queries))
        inside: npt.NDArray[np.bool_] = (self.ranges[..., 0, None] <= positions) & (
            positions < self.ranges[..., 1, None]
        )
        seen: npt.NDArray[np.bool_] = np.any(inside, axis=1)
        keys, values = (np.asarray(part, np.float64).swapaxes(0, 1) for part in (self.keys, self.values))
        return oracle(scale(self.queries), keys, values, seen)


def segments(prefix: int, lengths: Sequence[int], T: int) -> Ints:
    """Return the ranges of a prefix and of items behind it, each of which sees the prefix and itself: [T, 2, 2]."""
    ranges = np.zeros((T, 2, 2), np.int32)
    ranges[:prefix, 0, 1] = np.arange(1, prefix + 1)
    begin = prefix
    for length in lengths:
        rows = np.arange(begin, begin + length)
        ranges[rows, 0, 1] = prefix
        ranges[rows, 1] = np.stack([np.full(length, begin), rows + 1], axis=1)
        begin += length
    return ranges


def oracle(scaled: Floats, keys: Floats, values: Floats, seen: npt.NDArray[np.bool_]) -> Expected:
    """Return attention in float64: scaled queries [T, H, D], keys and values [K, S, D], seen [T, S]."""
    keys, values = (np.repeat(part, H // K, axis=0) for part in (keys, values))
    scores = np.where(seen[:, None], np.einsum("thd,hsd->ths", scaled, keys), -np.inf)
    peak = scores.max(axis=-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    weights = np.exp(scores - peak)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        log_sum_exp = (peak + np.log(total))[..., 0]
    return Expected(np.einsum("ths,hsd->thd", weights / np.where(total == 0, 1, total), values), log_sum_exp)


def assert_close(found: AttentionOutput, expected: Expected) -> None:
    np.testing.assert_allclose(found.log_sum_exp, expected.log_sum_exp, atol=2e-5)
    np.testing.assert_allclose(found.out, expected.out, atol=TOLERANCE, rtol=2**-7)
