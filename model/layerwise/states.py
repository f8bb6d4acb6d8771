"""The programs that keep the states of recurrent layers in a pool, and take them from there.

The pool has a state for each block of keys and values: what a layer keeps of the sequence up to the block's end. So
both are found, counted, evicted and computed again together.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.random import Generator

from model.checks.cases import MAX_BLOCKS, normal
from model.checks.expected import Case, ExpectedOutput
from model.layerwise.decoder import LayerwiseDecoder
from model.programs.kind import ProgramKey, Source, int32


@dataclass(frozen=True, slots=True)
class KeepStateKey(ProgramKey[LayerwiseDecoder]):
    """The program that writes a state into the pool."""

    blocks: int  # of the pool

    def source(self, decoder: LayerwiseDecoder) -> Source:
        return Source(keep, (*decoder.state(self.blocks), *decoder.state(1), int32()), donated=(0, 1))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """Writing a state, which must leave its neighbours unchanged."""
        checked, pool, states = min(self.blocks, MAX_BLOCKS), list[Array](), list[np.ndarray]()
        expected = list[ExpectedOutput]()
        place = checked - 1
        for part in decoder.state(self.blocks):
            before = np.zeros(part.shape, np.float32)
            before[:checked] = 1
            pool.append(jnp.array(before))
            states.append(normal(random, 1, *part.shape[1:]))
            before[place] = states[-1][0]
            expected.append(ExpectedOutput(before[:checked], exact=True))
        return (*pool, *states, np.int32(place)), tuple(expected)


@dataclass(frozen=True, slots=True)
class TakeStateKey(ProgramKey[LayerwiseDecoder]):
    """The program that reads a state from the pool."""

    blocks: int  # of the pool

    def source(self, decoder: LayerwiseDecoder) -> Source:
        return Source(take, (*decoder.state(self.blocks), int32()))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """Reading a state that differs from its neighbours."""
        checked = min(self.blocks, MAX_BLOCKS)
        pool = [np.zeros(part.shape, np.float32) for part in decoder.state(self.blocks)]
        for part in pool:
            part[:checked] = normal(random, checked, *part.shape[1:])
        return (*pool, np.int32(checked - 1)), tuple(ExpectedOutput(part[checked - 1], exact=True) for part in pool)


def keep(pool_inputs: Array, pool_states: Array, inputs: Array, state: Array, block: Array) -> tuple[Array, Array]:
    """Write what a layer keeps, [1, ...] each, behind a block, int32 []. The pool's buffers are donated."""
    return (
        lax.dynamic_update_slice(pool_inputs, inputs, (block, 0, 0)),
        lax.dynamic_update_slice(pool_states, state, (block, 0, 0, 0)),
    )


def take(pool_inputs: Array, pool_states: Array, block: Array) -> tuple[Array, Array]:
    """Return what a layer keeps behind a block, int32 []; nothing is kept behind -1."""
    found = (
        lax.dynamic_index_in_dim(part, jnp.maximum(block, 0), keepdims=False) for part in (pool_inputs, pool_states)
    )
    inputs, state = (jnp.where(block >= 0, part, 0.0) for part in found)
    return inputs, state
