"""The program in which tokens attend to their prefix in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from jax import Array
from numpy.random import Generator

from model.attention.contract import PrefixBlocks
from model.checks.cases import MAX_BLOCKS, attended, evenly_spaced, pool_dtype, random_key_values, random_queries
from model.checks.expected import Case, ExpectedOutput
from model.checks.numpy_decoder import Mask
from model.layerwise.decoder import LayerwiseDecoder
from model.programs.kind import ProgramKey, Source, int32


@dataclass(frozen=True, slots=True)
class PrefixAttentionKey(ProgramKey[LayerwiseDecoder]):
    """Attention of tokens to their prefix."""

    tokens: int
    blocks: int  # of the pool

    def source(self, decoder: LayerwiseDecoder) -> Source:
        prefix = (*decoder.pool(self.blocks), int32(decoder.longest))
        seen = (int32(self.tokens),) * (1 if decoder.config.window is None else 2)
        return Source(partial(prefix_attention, decoder), (decoder.queries(self.tokens), *prefix, *seen))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """A prefix in some blocks of the pool, of which each token sees another part."""
        size, count = decoder.buckets.block_tokens, min(self.blocks, decoder.longest, MAX_BLOCKS)
        queries = random_queries(random, decoder, decoder.buckets.padded_rows(self.tokens))
        keys, values = random_key_values(random, decoder, count * size)
        used = random.permutation(self.blocks)[:count]
        table = np.zeros(decoder.longest, np.int32)
        table[:count] = used
        pool = [np.zeros(part.shape, part.dtype) for part in decoder.pool(self.blocks)]
        for number, block in enumerate(used):
            of_block = slice(number * size, (number + 1) * size)
            pool[0][block] = pool_dtype(keys[of_block].transpose(1, 2, 0), pool[0].dtype)
            pool[1][block] = pool_dtype(values[of_block].transpose(1, 0, 2), pool[1].dtype)
        ends = random.integers(0, count * size, self.tokens, np.int32, endpoint=True)
        ends[:5] = (0, 1, size - 1, size, count * size)
        checked = evenly_spaced(self.tokens)
        begins = np.zeros_like(ends)
        if decoder.config.window is not None:
            begins = random.integers(0, ends, dtype=np.int32, endpoint=True)
            begins[::3] = 0
        places = np.arange(count * size)
        visible: Mask = np.less(places, ends[checked, None]) & np.greater_equal(places, begins[checked, None])
        output = attended(decoder, queries[checked], keys, values, visible)
        log_sum_exp = ExpectedOutput(output.log_sum_exp, checked, min_scale=1.0)
        seen = (ends,) if decoder.config.window is None else (ends, begins)
        return (queries, *pool, table, *seen), (ExpectedOutput(output.out, checked), log_sum_exp)


def prefix_attention(decoder: LayerwiseDecoder, *arguments: Array) -> tuple[Array, ...]:
    """(queries, pool keys, pool values, table, prefix ends [T]) -> out float32 [I, H, D], log-sum-exp [I, H].

    With a sliding window, where in the prefix each token begins to see comes last, [T]: 0 in layers without it.
    """
    queries, keys, values, table, *seen = arguments
    ends = seen[0]
    output = decoder.attention.attend_prefix(queries[: len(ends)], PrefixBlocks(keys, values, table), *seen)
    return decoder.padded(output.out, output.log_sum_exp)
