"""Whole steps of a small decoder, on the device that the tests run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from model.attention.contract import WholeStepAttention
from model.attention.xla import XLAAttention
from model.decoder import Decoder
from model.forward import Extension
from model.linear import project, rms_norm
from model.whole_steps.layout import Behind, Unfilled, extend_steps, prefill_steps
from model.whole_steps.programs import Pool, WholeStepPrograms
from model.whole_steps.shape import StepShape

SMALL = StepShape(tokens=128, tile_rows=32, block_tokens=64, blocks=16, longest=8, max_items=32)


@dataclass
class WholeSteps:
    """A decoder with a pool, and the programs of its steps."""

    decoder: Decoder
    shape: StepShape = SMALL
    attention: WholeStepAttention = field(default_factory=XLAAttention)

    def __post_init__(self) -> None:
        self.programs = WholeStepPrograms(self.decoder, self.attention)
        count = len(self.programs.weights)
        self._extend = jax.jit(self.programs.extend)
        self._prefill = jax.jit(self.programs.prefill, donate_argnums=(count, count + 1))
        self._packed = jax.jit(self.programs.packed)
        shapes = self.programs.pool(self.shape.blocks, self.shape.block_tokens)
        self.pool = Pool(*(jnp.zeros(part.shape, part.dtype) for part in shapes))

    def prefill(self, prefixes: Sequence[Unfilled]) -> np.ndarray:
        """Write prefixes into the pool. Returns the hidden states of their last tokens: [prefixes, width]."""
        hidden: dict[int, np.ndarray] = {}
        for step in prefill_steps(prefixes, self.shape):
            states, *pool = self._prefill(*self.programs.weights, *self.pool, *step.arrays)
            self.pool = Pool(*pool)
            hidden |= zip(map(id, step.finished), np.asarray(states), strict=False)
        return np.stack([hidden[id(prefix)] for prefix in prefixes])

    def extend(self, work: Sequence[Behind]) -> list[np.ndarray]:
        """Return the hidden states of the items of each prefix: [items, width]."""
        hidden: dict[int, np.ndarray] = {}
        for step in extend_steps(work, self.shape):
            (states,) = self._extend(*self.programs.weights, *self.pool, *step.arrays)
            hidden |= zip(map(id, step.extensions), np.asarray(states), strict=False)
        return [np.stack([hidden[id(item)] for item in one.extensions]) for one in work]

    def packed(
        self, tokens: np.ndarray, positions: np.ndarray, ranges: np.ndarray, logit_positions: np.ndarray
    ) -> np.ndarray:
        """Return the hidden states of a packed sequence at some positions: [n, width]."""
        (states,) = self._packed(*self.programs.weights, tokens, positions, ranges, logit_positions)
        return np.asarray(states)

    def logprobs(self, hidden: np.ndarray) -> np.ndarray:
        """Return log-probabilities over the vocabulary of hidden states: [n, vocabulary]."""
        norm = self.decoder.model.norm
        logits = project(rms_norm(jnp.asarray(hidden), norm.weight[...], norm.epsilon), self.decoder.head_kernel())
        return np.asarray(jax.nn.log_softmax(logits))


def table(blocks: Sequence[int], shape: StepShape = SMALL) -> np.ndarray:
    """The block table of a prefix."""
    found = np.zeros(shape.longest, np.int32)
    found[: len(blocks)] = blocks
    return found


def items(rows: Sequence[np.ndarray], starts: Sequence[int]) -> list[Extension]:
    """Items that see the first tokens of their prefix."""
    return [Extension(row, start) for row, start in zip(rows, starts, strict=True)]
