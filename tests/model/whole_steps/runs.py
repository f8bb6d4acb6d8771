"""Whole steps of a small decoder, on the device that the tests run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from model.architecture.decoder import Decoder
from model.attention.contract import WholeStepAttention
from model.attention.xla import XLAAttention
from model.forward import Extension
from model.layers.linear import project
from model.whole_steps.decoder import Pool, StackedDecoder
from model.whole_steps.extend import extend
from model.whole_steps.filling import filled
from model.whole_steps.layout import ItemStep, PrefillStep
from model.whole_steps.packed import packed
from model.whole_steps.prefill import prefill
from model.whole_steps.shape import StepShape

SMALL = StepShape(tokens=128, tile_rows=32, block_tokens=64, blocks=16, longest=8, max_items=32)


@dataclass
class WholeSteps:
    """A decoder with a pool, and the programs of its steps."""

    decoder: Decoder
    shape: StepShape = SMALL
    attention: WholeStepAttention = field(default_factory=XLAAttention)

    def __post_init__(self) -> None:
        recurrence = self.decoder.config.recurrence
        self.shape = replace(self.shape, inputs=0 if recurrence is None else recurrence.inputs)
        self.stacked = StackedDecoder(self.decoder, self.attention, self.shape)
        count = len(self.stacked.weights)
        self._extend = jax.jit(partial(extend, self.stacked))
        donated = tuple(range(count, count + len(self.stacked.pool())))
        self._prefill = jax.jit(partial(prefill, self.stacked), donate_argnums=donated)
        self._packed = jax.jit(partial(packed, self.stacked, False))
        self.pool = self.stacked.empty_pool()

    def prefill(self, prefixes: Sequence[Prefix]) -> np.ndarray:
        """Write prefixes into the pool. Returns the hidden states of their last tokens: [prefixes, width]."""
        hidden: dict[int, np.ndarray] = {}
        pieces = [piece for prefix in prefixes for piece in prefix.pieces(self.shape)]
        for step in filled(pieces, self.shape):
            arrays = PrefillStep.of(step, self.shape).arrays
            states, *pool = self._prefill(*self.stacked.weights, *self.pool.arrays, *arrays)
            self.pool = Pool.of(pool)
            hidden |= {id(piece.table): state for piece, state in zip(step, np.asarray(states), strict=False)}
        return np.stack([hidden[id(prefix.table)] for prefix in prefixes])

    def extend(self, items: Sequence[Extension]) -> np.ndarray:
        """Return the hidden states of items: [items, width]."""
        hidden: dict[int, np.ndarray] = {}
        for step in filled(items, self.shape):
            (states,) = self._extend(*self.stacked.weights, *self.pool.arrays, *ItemStep.of(step, self.shape).arrays)
            hidden |= zip(map(id, step), np.asarray(states), strict=False)
        return np.stack([hidden[id(item)] for item in items])

    def packed(self, *arrays: np.ndarray) -> np.ndarray:
        """Return the hidden states of a packed sequence at some positions: [n, width].

        arrays: see :meth:`model.packed_sequence.PackedSequence.arrays`.
        """
        (states,) = self._packed(*self.stacked.weights, *arrays)
        return np.asarray(states)

    def logprobs(self, hidden: np.ndarray) -> np.ndarray:
        """Return log-probabilities over the vocabulary of hidden states: [n, vocabulary]."""
        logits = project(self.decoder.model.norm(jnp.asarray(hidden)), self.decoder.head_kernel())
        return np.asarray(jax.nn.log_softmax(logits))


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
