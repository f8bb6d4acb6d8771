"""The program that writes a piece's keys and values into the pool."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.random import Generator

from model.checks.cases import MAX_BLOCKS, pool_dtype, random_key_values
from model.checks.expected import Case, ExpectedOutput
from model.layers.linear import to_pool_dtype
from model.layerwise.decoder import LayerwiseDecoder
from model.programs.kind import ProgramKey, Source, int32


@dataclass(frozen=True, slots=True)
class StoreKey(ProgramKey[LayerwiseDecoder]):
    """The program that writes a piece's keys and values into a block of the pool."""

    blocks: int  # of the pool

    def source(self, decoder: LayerwiseDecoder) -> Source:
        stored = *decoder.key_values(decoder.buckets.step_tokens), int32(3)
        return Source(store, (*decoder.pool(self.blocks), *stored), donated=(0, 1))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """Writing a part of a block behind what another one begins with, which must leave all others unchanged."""
        keys, values = random_key_values(random, decoder, decoder.buckets.step_tokens)
        checked, size = min(self.blocks, MAX_BLOCKS), decoder.buckets.block_tokens
        target, source, first = checked - 1, max(0, checked - 2), size // 4
        pool = [np.zeros(part.shape, part.dtype) for part in decoder.pool(self.blocks)]
        for part in pool:
            part[:checked] = random.integers(1, 100, (checked, *part.shape[1:]))
        donated = [jnp.array(part) for part in pool]
        for part in pool:
            part[target] = part[source]
        own = slice(0, size - first)
        pool[0][target, :, :, first:] = pool_dtype(keys[own].transpose(1, 2, 0), pool[0].dtype)
        pool[1][target, :, first:] = pool_dtype(values[own].transpose(1, 0, 2), pool[1].dtype)
        expected = (ExpectedOutput(part[:checked], exact=True) for part in pool)
        return (*donated, keys, values, np.array([target, source, first], np.int32)), tuple(expected)


def store(pool_keys: Array, pool_values: Array, keys: Array, values: Array, place: Array) -> tuple[Array, Array]:
    """Write a piece's keys and values, [I, K, D], into a pool, whose buffers are donated.

    place: int32 [3]: the block that they are written to; the block whose beginning comes before them; and from which of
    the block's tokens on they stand there. What goes past the end of the block is not written.
    """
    target, source, first = place
    size = pool_keys.shape[-1]
    is_own = jnp.arange(size) >= first

    def stored(pool: Array, part: Array, axes: tuple[int, int, int], tokens: int) -> Array:
        own = to_pool_dtype(jnp.roll(part[:size], first, axis=0), pool.dtype).transpose(axes)
        seen = jnp.expand_dims(is_own, [axis for axis in range(3) if axis != tokens])
        block = jnp.where(seen, own, lax.dynamic_index_in_dim(pool, source, keepdims=False))
        changed: Array = lax.dynamic_update_index_in_dim(pool, block, target, 0)
        return changed

    return stored(pool_keys, keys, (1, 2, 0), 2), stored(pool_values, values, (1, 0, 2), 1)
