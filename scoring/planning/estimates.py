"""Estimates of the tokens, padding included, and of the seconds that scoring a group takes.

An estimate counts the operations of every step as the engine would lay it out, and divides them by rates that
``python -m benchmarks.rates`` measured on such hardware (``scoring/planning/rates``). It has to put the algorithms in
the right order; :mod:`scoring.planning.calibration` corrects the seconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from scoring.planning.algorithms import Algorithm
from scoring.planning.bin_packing import first_fit_decreasing
from scoring.planning.lengths import GroupLengths, Indices

Floats = npt.NDArray[np.float64]

MEASURED = Path(__file__).parent / "rates"
"""Rates by platform, in jax's name for it. Platforms without a file use the rates of a CPU."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The floating-point operations of a model."""

    layers: int
    linear_flop: float  # of a token through all layers, without attention
    pair_flop: float  # of a query and a visible key, in all layers
    head_flop: float  # of a row of scores


@dataclass(frozen=True, slots=True)
class Rates:
    """The measured speed of a kind of hardware, in GFLOP/s. Attention counts all pairs of the computed tiles."""

    linear: tuple[tuple[int, float], ...]  # of a layer without attention, by the tokens of a step, ascending
    prefix: float  # of attention to the blocks of a prefix
    segment: float  # of attention in a packed sequence that skips tiles
    dense: float  # of attention in a packed sequence with a mask
    head: float
    layer_seconds: float  # time to call the programs of a layer

    @classmethod
    def of(cls, platform: str, directory: Path = MEASURED) -> Self:
        """Read the rates of a platform."""
        path = directory / f"{platform}.json"
        stored = json.loads((path if path.exists() else directory / "cpu.json").read_text())
        linear = sorted((int(tokens), float(rate)) for tokens, rate in stored["linear_gflops"].items())
        return cls(
            tuple(linear),
            prefix=stored["prefix_gflops"],
            segment=stored["segment_gflops"],
            dense=stored["dense_gflops"],
            head=stored["head_gflops"],
            layer_seconds=stored["layer_seconds"],
        )

    def linear_at(self, tokens: int) -> float:
        """Return the GFLOP/s of a step of ``tokens`` tokens."""
        return next((rate for size, rate in self.linear if tokens <= size), self.linear[-1][1])


SHORTEST_SLOT = 8
"""Rows of the shortest slot of an item in a step: see :attr:`Shapes.slot_tokens`."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sizes to which the engine pads."""

    step_sizes: tuple[int, ...]  # tokens of a step, ascending
    max_rows: int  # items of a step
    packed_sizes: tuple[int, ...]  # tokens of a packed sequence, ascending
    head_rows: int  # rows of a head program
    tile_tokens: int = 0  # to which the tokens of a prefix are padded in a step of several; 0: a step has one prefix
    slot_tokens: int = 0
    """Tokens of all slots of a step. A slot is what an item is padded to for attention to itself (:func:`slot_rows`).
    0: their number is not limited."""

    @property
    def step_tokens(self) -> int:
        """Tokens of the largest step."""
        return self.step_sizes[-1]

    def packed_pairs(self, prefix: int, size: int, *, dense: bool) -> float:
        """Return the pairs in all computed tiles of a packed sequence of one prefix and its items, ``size`` tokens."""
        if dense:
            return size * size
        # A tile of queries visits all tiles of the prefix, or half of them on average if it is in the prefix itself,
        # and about two tiles of its own items.
        return prefix * prefix / 2 + (size - prefix) * prefix + 2 * size * self.step_tokens


def slot_rows(length: int) -> int:
    """Return the rows of an item's slot: see :class:`model.attention.contract.ItemSlots`."""
    return max(SHORTEST_SLOT, 1 << (length - 1).bit_length())


def slots_of(lengths: Indices) -> Indices:
    """Return :func:`slot_rows` of many lengths, one at least."""
    exponents = np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    found: Indices = np.maximum(SHORTEST_SLOT, np.left_shift(1, exponents))
    return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated cost of some work."""

    tokens: int = 0  # computed, padding included
    seconds: float = 0.0  # on the hardware whose rates were measured

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.tokens + other.tokens, self.seconds + other.seconds)


NOTHING = Estimate()


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """The estimated costs of several pieces of work, float64 [n] each."""

    tokens: Floats
    seconds: Floats

    def __add__(self, other: Estimates) -> Estimates:
        return Estimates(self.tokens + other.tokens, self.seconds + other.seconds)

    def times(self, factors: npt.NDArray[Any]) -> Estimates:
        """Return a multiple of each."""
        return Estimates(self.tokens * factors, self.seconds * factors)

    def sum(self) -> Estimate:
        """Return the cost of all together."""
        return Estimate(round(float(self.tokens.sum())), float(self.seconds.sum()))


@dataclass(frozen=True, slots=True)
class Estimator:
    """Makes estimates for one model on one kind of hardware."""

    model: ModelSize
    rates: Rates
    shapes: Shapes
    _sizes: Indices = field(init=False, compare=False, repr=False)  # of steps
    _linear_seconds: Floats = field(init=False, compare=False, repr=False)  # of a step of each size

    def __post_init__(self) -> None:
        # By the base class, since this one is frozen.
        object.__setattr__(self, "_sizes", np.array(self.shapes.step_sizes))
        object.__setattr__(self, "_linear_seconds", np.array([self._linear(one) for one in self.shapes.step_sizes]))

    def of(self, algorithm: Algorithm, group: GroupLengths) -> Estimate:
        """Estimate the scoring of all rows of a group by itself."""
        match algorithm:
            case Algorithm.SERIAL:
                body = self.items(group.lengths + group.prefix_ends, 0)
            case Algorithm.PREFILL_EXTEND:
                prefill = NOTHING if group.cached else self.long(group.prefix).sum()
                # A row that ends with the prefix is computed with it.
                body = prefill + self.items(group.lengths, group.prefix)
            case Algorithm.PACKED_SEGMENT | Algorithm.PACKED_DENSE:
                body = self._packed(group, dense=algorithm is Algorithm.PACKED_DENSE)
        return body + self.heads(len(group))

    def heads(self, states: int) -> Estimate:
        """Estimate heads over some final states."""
        rows = -(-states // self.shapes.head_rows) * self.shapes.head_rows
        return Estimate(0, rows * self.model.head_flop / self.rates.head / 1e9)

    def items(self, lengths: npt.NDArray[Any], prefix: int) -> Estimate:
        """Estimate items behind a prefix, in tokens."""
        is_long = lengths > self.shapes.step_tokens
        short = lengths[(lengths > 0) & ~is_long]
        total = self.long(lengths[is_long], prefix).sum()
        bins = list(first_fit_decreasing(short, self.shapes.step_tokens, self.shapes.max_rows))
        tokens, longest = (np.array([of(short[items]) for items in bins], np.int64) for of in (np.sum, np.max))
        return total + self._steps(tokens, self._blocks(prefix), longest).sum()

    def long(self, lengths: Indices | int, prefixes: Indices | int = 0) -> Estimates:
        """Estimate sequences behind prefixes of so many tokens, each computed in steps one after another."""
        step = self.shapes.step_tokens
        lengths = np.atleast_1d(lengths).astype(np.int64)
        whole, rest, blocks = lengths // step, lengths % step, self._blocks(prefixes)
        # The steps between the first and the last whole one are as far from either on average.
        of_whole = self._steps(np.full_like(whole, step), blocks + (whole - 1) * step / 2, step).times(whole)
        return of_whole + self._steps(rest, blocks + whole * step, rest).times(rest > 0)

    def row(self, lengths: Indices, prefixes: Indices) -> Estimates:
        """Estimate each of many rows behind prefixes. A row within a step takes its share of a full one."""
        step = self.shapes.step_tokens
        shares = self._steps(np.full_like(lengths, step), self._blocks(prefixes), lengths).times(lengths / step)
        within = lengths <= step
        if within.all():
            return shares
        long = self.as_prefixes(lengths, prefixes)
        return Estimates(np.where(within, shares.tokens, long.tokens), np.where(within, shares.seconds, long.seconds))

    def as_prefixes(self, lengths: Indices, prefixes: Indices) -> Estimates:
        """Estimate sequences that are computed as prefixes of their own, on the whole steps of other prefixes."""
        step, tile = self.shapes.step_tokens, self.shapes.tile_tokens
        shared = prefixes // step * step
        own = prefixes + lengths - shared
        if not tile:
            return self.long(own, shared)
        return self._steps(np.full_like(own, step), shared, own).times(-(-own // tile) * tile / step)

    def behind_prefixes(self, tokens: Indices, prefixes: Indices) -> Estimates:
        """Estimate so many tokens of labels behind prefixes that have no other items."""
        step, tile = self.shapes.step_tokens, self.shapes.tile_tokens
        if not tile:
            return self.long(tokens, prefixes)
        return self._steps(np.full_like(tokens, step), self._blocks(prefixes), tokens).times(
            -(-tokens // tile) * tile / step
        )

    def _blocks(self, prefixes: Indices | int) -> Indices:
        """Return the tokens of the blocks of prefixes: a part of a step counts as a whole one."""
        step = self.shapes.step_tokens
        return -(-np.asarray(prefixes, np.int64) // step) * step

    def _steps(self, tokens: Indices, blocks: npt.NDArray[Any], longest: npt.NDArray[Any] | int) -> Estimates:
        """Estimate steps of items of at most ``longest`` tokens behind so many tokens of blocks.

        Self-attention, a small part of a step, is counted as if all items were as long as the longest.
        """
        place = np.searchsorted(self._sizes, np.minimum(tokens, self.shapes.step_tokens))
        size = self._sizes[place].astype(np.float64)
        pairs = size * (blocks + longest)
        return Estimates(size, self._linear_seconds[place] + pairs * self.model.pair_flop / self.rates.prefix / 1e9)

    def _packed(self, group: GroupLengths, *, dense: bool) -> Estimate:
        """Estimate packed sequences of a prefix and its items. No row may be too long for one sequence."""
        longest = self.shapes.packed_sizes[-1]
        items = int(group.lengths.sum())
        room = max(1, longest - group.prefix)
        sequences = -(-items // room) or 1
        tokens = -(-(items + sequences * group.prefix) // sequences)
        size = next((size for size in self.shapes.packed_sizes if tokens <= size), longest)
        pairs = self.shapes.packed_pairs(group.prefix, size, dense=dense)
        rate = self.rates.dense if dense else self.rates.segment
        one = Estimate(size, self._linear(size) + pairs * self.model.pair_flop / rate / 1e9)
        return Estimate(sequences * one.tokens, sequences * one.seconds)

    def _linear(self, size: int) -> float:
        calls = self.model.layers * self.rates.layer_seconds
        return size * self.model.linear_flop / self.rates.linear_at(size) / 1e9 + calls
