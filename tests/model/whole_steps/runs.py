"""Short whole steps of small decoders, by an engine or without one, on the device that the tests run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import Array

from model.architecture.decoder import Decoder
from model.attention.contract import WholeStepAttention
from model.attention.xla import XLAAttention
from model.engine import Engine
from model.executable_table import ExecutableTable
from model.forward import Extension
from model.layers.linear import capped, project
from model.whole_steps import shape
from model.whole_steps.decoder import Pool, StackedDecoder
from model.whole_steps.extend import ExtendKey
from model.whole_steps.filling import filled
from model.whole_steps.layout import ItemStep, PrefillStep
from model.whole_steps.packed import PackedKey
from model.whole_steps.prefill import PrefillKey
from model.whole_steps.shape import StepShape
from tests.model import engines
from tests.model.engines import DType
from tests.model.whole_steps.conftest import WHOLE_STEPS

SMALL = StepShape(tokens=128, tile_rows=32, block_tokens=64, blocks=257, longest=16, max_items=64)
"""That of engines of :func:`short_steps`, so that all tests here compile the programs of one shape."""


def short_steps(directory: Path, dtype: DType = "float32", **settings: Any) -> Engine:
    """An engine over a checkpoint directory, whose steps have two blocks of two tiles."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(shape, "TILE_ROWS", SMALL.tile_rows)
        return engines.load(directory, dtype, platform=WHOLE_STEPS, step_tokens=SMALL.tokens, **settings)


@dataclass
class WholeSteps:
    """A decoder with a pool, and the programs of its steps."""

    decoder: Decoder
    shape: StepShape = SMALL
    attention: WholeStepAttention | None = None  # None: XLA's

    def __post_init__(self) -> None:
        recurrence = self.decoder.config.recurrence
        self.shape = replace(self.shape, inputs=0 if recurrence is None else recurrence.inputs)
        caps = self.decoder.config.caps
        self.stacked = StackedDecoder(self.decoder, self.attention or XLAAttention(caps.scores), self.shape)
        self._programs = ExecutableTable(self.stacked, WHOLE_STEPS, engines.unchecked)
        self.pool = self.stacked.empty_pool()

        def logprobs(hidden: Array) -> Array:
            logits = project(self.decoder.model.norm(hidden), self.decoder.head_kernel())
            return jax.nn.log_softmax(capped(logits, caps.logits))

        self._logprobs = jax.jit(logprobs)

    def prefill(self, prefixes: Sequence[Prefix]) -> np.ndarray:
        """Write prefixes into the pool. Returns the hidden states of their last tokens: [prefixes, width]."""
        hidden: dict[int, np.ndarray] = {}
        pieces = [piece for prefix in prefixes for piece in prefix.pieces(self.shape)]
        for step in filled(pieces, self.shape):
            arrays = PrefillStep.of(step, self.shape).arrays
            states, *pool = self._programs[PrefillKey()](*self.stacked.weights, *self.pool.arrays, *arrays)
            self.pool = Pool.of(pool)
            hidden |= {id(piece.table): state for piece, state in zip(step, np.asarray(states), strict=False)}
        return np.stack([hidden[id(prefix.table)] for prefix in prefixes])

    def extend(self, items: Sequence[Extension]) -> np.ndarray:
        """Return the hidden states of items: [items, width]."""
        hidden: dict[int, np.ndarray] = {}
        for step in filled(items, self.shape):
            arrays = ItemStep.of(step, self.shape).arrays
            (states,) = self._programs[ExtendKey()](*self.stacked.weights, *self.pool.arrays, *arrays)
            hidden |= zip(map(id, step), np.asarray(states), strict=False)
        return np.stack([hidden[id(item)] for item in items])

    def packed(self, *arrays: np.ndarray) -> np.ndarray:
        """Return the hidden states of a packed sequence at some positions: [n, width].

        arrays: see :meth:`model.packed_sequence.PackedSequence.arrays`.
        """
        key = PackedKey(len(arrays[0]), len(arrays[-1]), dense=False)
        (states,) = self._programs[key](*self.stacked.weights, *arrays)
        return np.asarray(states)

    def logprobs(self, hidden: np.ndarray) -> np.ndarray:
        """Return log-probabilities over the vocabulary of hidden states, as many as a step has items at most."""
        padded = np.pad(hidden, ((0, self.shape.max_items - len(hidden)), (0, 0)))
        return np.asarray(self._logprobs(padded))[: len(hidden)]


@dataclass(frozen=True, eq=False)
class Prefix:
    """A prefix and its blocks."""

    tokens: np.ndarray
    table: np.ndarray
    done: int = 0  # how many of its first tokens are in the pool: whole blocks

    def pieces(self, shape: StepShape) -> list[Extension]:
        """Pieces of a block each."""
        size = shape.block_tokens
        return [
            Extension(self.tokens[begin : begin + size], begin, None, self.table, self.table[begin // size :][:1])
            for begin in range(self.done, len(self.tokens), size)
        ]

    def items(self, rows: Sequence[np.ndarray], starts: Sequence[int]) -> list[Extension]:
        """Items that see the first tokens of the prefix."""
        return [Extension(row, start, None, self.table) for row, start in zip(rows, starts, strict=True)]


def table(blocks: Sequence[int], shape: StepShape = SMALL) -> np.ndarray:
    """The block table of a prefix."""
    found = np.zeros(shape.longest, np.int32)
    found[: len(blocks)] = blocks
    return found
