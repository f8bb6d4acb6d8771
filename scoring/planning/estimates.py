"""What scoring a group is estimated to take: tokens, padding included, and seconds.

An estimate counts the operations of every step as the engine would lay it out, and divides them by rates that were
measured on hardware of the kind (``python -m benchmarks.rates``, kept in ``scoring/planning/rates``). It need not be
exact. It has to put the algorithms in the right order, and to tell a second of work from a minute.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from scoring.layout import TokenIds
from scoring.planning.algorithms import Algorithm
from scoring.planning.bin_packing import first_fit_decreasing

MEASURED = Path(__file__).parent / "rates"
"""Rates by platform, in jax's name for it; where there are none, those of a CPU serve: algorithms keep their order."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model costs, in floating-point operations through all of its layers.

    linear_flop: a token; pair_flop: a query and a key that it sees; head_flop: a row of scores.
    """

    layers: int
    linear_flop: float
    pair_flop: float
    head_flop: float


@dataclass(frozen=True, slots=True)
class Rates:
    """What hardware of a kind does, measured.

    linear: GFLOP/s of everything in a layer but attention, by the tokens of a step, ascending; prefix, segment, dense:
    GFLOP/s of attention to a prefix's blocks, of a packed sequence whose empty tiles are skipped, and of one with a
    mask, for all pairs of the tiles computed; head: GFLOP/s; layer_seconds: what calling a layer's programs takes.
    """

    linear: tuple[tuple[int, float], ...]
    prefix: float
    segment: float
    dense: float
    head: float
    layer_seconds: float

    @classmethod
    def of(cls, platform: str, directory: Path = MEASURED) -> Self:
        """Those measured on a platform."""
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
        """GFLOP/s for a step of so many tokens."""
        return next((rate for size, rate in self.linear if tokens <= size), self.linear[-1][1])


@dataclass(frozen=True, slots=True)
class Shapes:
    """How the engine pads.

    step_sizes: tokens of a step, ascending; most_rows: items of a step; packed_sizes: tokens of a packed sequence,
    ascending; head_rows: rows of a head program.
    """

    step_sizes: tuple[int, ...]
    most_rows: int
    packed_sizes: tuple[int, ...]
    head_rows: int

    @property
    def step(self) -> int:
        """Tokens of the largest step."""
        return self.step_sizes[-1]

    def packed_pairs(self, prefix: int, size: int, *, dense: bool) -> float:
        """Pairs of all tiles that a packed sequence of one prefix and its items computes, ``size`` tokens in all."""
        if dense:
            return size * size
        # A tile of queries visits those of the prefix, half of them on average if it is of the prefix itself, and
        # about two where its own items are.
        return prefix * prefix / 2 + (size - prefix) * prefix + 2 * size * self.step

    def padded(self, tokens: int) -> int:
        """What a step of so many tokens computes."""
        return next(size for size in self.step_sizes if tokens <= size)


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """A group's lengths, in tokens: of its prefix, and int32 [N] of its rows' own tokens and prefix ends.

    cached: whether the work on the prefix is there from an earlier time.
    """

    prefix: int
    lengths: TokenIds
    prefix_ends: TokenIds
    cached: bool = False

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def packed(self) -> int:
        """Tokens of the prefix and all items behind it."""
        return self.prefix + int(self.lengths.sum())

    def only(self, rows: npt.NDArray[np.int64]) -> Geometry:
        """The same group with some of its rows."""
        return replace(self, lengths=self.lengths[rows], prefix_ends=self.prefix_ends[rows])


@dataclass(frozen=True, slots=True)
class Estimate:
    """tokens: computed, padding included; seconds: on hardware whose rates were measured."""

    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.tokens + other.tokens, self.seconds + other.seconds)


NOTHING = Estimate()


@dataclass(frozen=True, slots=True)
class Estimator:
    """Estimates for one model on one kind of hardware."""

    model: ModelSize
    rates: Rates
    shapes: Shapes

    def of(self, algorithm: Algorithm, group: Geometry) -> Estimate:
        """What it takes to score all rows of a group, were it alone."""
        match algorithm:
            case Algorithm.SERIAL:
                body = self._items(group.lengths + group.prefix_ends, 0)
            case Algorithm.PREFILL_EXTEND:
                prefill = NOTHING if group.cached else self._long(group.prefix)
                # A row that is read off the prefix's end is computed with it.
                body = prefill + self._items(group.lengths, group.prefix)
            case Algorithm.PACKED_SEGMENT | Algorithm.PACKED_DENSE:
                body = self._packed(group, dense=algorithm is Algorithm.PACKED_DENSE)
        rows = -(-len(group) // self.shapes.head_rows) * self.shapes.head_rows
        return body + Estimate(0, rows * self.model.head_flop / self.rates.head / 1e9)

    def _items(self, lengths: TokenIds, prefix: int) -> Estimate:
        """Items of such lengths behind so long a prefix."""
        total = NOTHING
        short = lengths[(lengths > 0) & (lengths <= self.shapes.step)]
        for length in lengths[lengths > self.shapes.step].tolist():
            total += self._long(length, prefix)
        for items in first_fit_decreasing(short, self.shapes.step, self.shapes.most_rows):
            total += self._step(int(short[items].sum()), prefix, int(short[items].max()))
        return total

    def _long(self, length: int, prefix: int = 0) -> Estimate:
        """A run of tokens, one step after another, each behind those before it."""
        step = self.shapes.step
        pieces = [min(step, length - done) for done in range(0, length, step)]
        return sum((self._step(piece, prefix + n * step, piece) for n, piece in enumerate(pieces)), NOTHING)

    def _step(self, tokens: int, prefix: int, span: int) -> Estimate:
        """A step of so many tokens behind a prefix, in items of at most ``span`` tokens.

        Their look at themselves is counted once, as if all were as long: a small part of a step.
        """
        size = self.shapes.padded(min(tokens, self.shapes.step))
        blocks = -(-prefix // self.shapes.step) * self.shapes.step
        pairs = size * (blocks + span)
        return Estimate(size, self._linear(size) + pairs * self.model.pair_flop / self.rates.prefix / 1e9)

    def _packed(self, group: Geometry, *, dense: bool) -> Estimate:
        """The prefix and its items in as many sequences as they need; without rows that are too long for one."""
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
