"""The program that writes a step's keys and values into the pool."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.random import Generator

from model.checks.cases import MAX_BLOCKS, pool_dtype, random_key_values
from model.checks.expected import Case, ExpectedOutput
from model.layerwise.decoder import LayerwiseDecoder
from model.linear import to_pool_dtype
from model.programs.kind import Source, int32


@dataclass(frozen=True, slots=True)
class StoreKey:
    """The program that writes a step's keys and values into blocks of the pool."""

    blocks: int  # of the pool

    def source(self, decoder: LayerwiseDecoder) -> Source:
        """See :class:`model.programs.kind.ProgramKey`."""
        stored = *decoder.key_values(decoder.buckets.step_tokens), int32(decoder.buckets.step_blocks)
        return Source(store, (*decoder.pool(self.blocks), *stored), donated=(0, 1))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """Writing the blocks of a step, as many as the pool has, which must leave their neighbours unchanged."""
        keys, values = random_key_values(random, decoder, decoder.buckets.step_tokens)
        count, size = decoder.buckets.step_blocks, decoder.buckets.block_tokens
        checked = min(self.blocks, count + MAX_BLOCKS)
        targets = np.full(count, self.blocks, np.int32)
        targets[:checked] = (1 + np.arange(min(count, checked))) % checked
        pool = [np.zeros(part.shape, part.dtype) for part in decoder.pool(self.blocks)]
        for part in pool:
            part[:checked] = 1
        donated = [jnp.array(part) for part in pool]
        for number, block in enumerate(targets[:checked]):
            of_block = slice(number * size, (number + 1) * size)
            pool[0][block] = pool_dtype(keys[of_block].transpose(1, 2, 0), pool[0].dtype)
            pool[1][block] = pool_dtype(values[of_block].transpose(1, 0, 2), pool[1].dtype)
        expected = (ExpectedOutput(part[:checked], exact=True) for part in pool)
        return (*donated, keys, values, targets), tuple(expected)


def store(pool_keys: Array, pool_values: Array, keys: Array, values: Array, blocks: Array) -> tuple[Array, Array]:
    """Write a step's keys and values, [I, K, D], into a pool, whose buffers are donated.

    blocks: int32 [step_blocks], where each block of them goes; what goes past the end of the pool is not written.
    """
    blocked = (part.reshape(len(blocks), -1, *part.shape[1:]) for part in (keys, values))  # [blocks, s, K, D]
    stored_keys, stored_values = (to_pool_dtype(part, pool_keys.dtype) for part in blocked)
    stored_keys, stored_values = stored_keys.transpose(0, 2, 3, 1), stored_values.transpose(0, 2, 1, 3)
    if len(blocks) == 1:
        start = (blocks[0], 0, 0, 0)
        return (
            lax.dynamic_update_slice(pool_keys, stored_keys, start),
            lax.dynamic_update_slice(pool_values, stored_values, start),
        )
    return (
        pool_keys.at[blocks].set(stored_keys, mode="drop"),
        pool_values.at[blocks].set(stored_values, mode="drop"),
    )
