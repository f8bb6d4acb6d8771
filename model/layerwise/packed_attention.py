"""The program in which the tokens of a packed sequence attend to each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.random import Generator

from model.attention.contract import Attention, AttentionOutput
from model.attention.dense import DenseAttention
from model.checks.cases import DISTINCT_ROWS, attended, in_turn, random_key_values, random_queries
from model.checks.expected import Case, ExpectedOutput
from model.layerwise.decoder import LayerwiseDecoder
from model.programs.kind import ProgramKey, Source, int32


@dataclass(frozen=True, slots=True)
class PackedAttentionKey(ProgramKey[LayerwiseDecoder]):
    """Attention within a packed sequence."""

    tokens: int
    logit_rows: int  # queries of that many tokens alone; 0: of all tokens
    dense: bool  # with an explicit mask

    def source(self, decoder: LayerwiseDecoder) -> Source:
        attention = DenseAttention(decoder.config.caps.scores) if self.dense else decoder.attention
        rows = self.logit_rows or self.tokens
        arguments = decoder.queries(rows), *decoder.key_values(self.tokens), int32(rows, 2, 2)
        return Source(partial(packed_attention, attention), arguments)

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """Queries that see two ranges of keys each, the first of which may be empty."""
        tokens, rows, some = self.tokens, self.logit_rows or self.tokens, DISTINCT_ROWS
        turns, padded_rows = in_turn(rows), decoder.buckets.padded_rows
        queries = random_queries(random, decoder, padded_rows(some))[:some]
        keys, values = random_key_values(random, decoder, padded_rows(tokens))
        first = np.stack([np.zeros(some, np.int32), random.integers(0, tokens // 4, some, np.int32)], axis=-1)
        second = random.integers(tokens // 4, tokens, (some, 2), np.int32)
        second.sort(axis=1)
        first[0], second[:, 1] = 0, second[:, 1] + 1
        ranges = np.stack([first, second], axis=1)
        positions = np.arange(len(keys))
        within = (ranges[..., :1] <= positions) & (positions < ranges[..., 1:])
        output = attended(decoder, queries, keys, values, within[:, 0] | within[:, 1])
        missing = ((0, padded_rows(rows) - rows), (0, 0), (0, 0))
        expected = ExpectedOutput(output.out[turns]), ExpectedOutput(output.log_sum_exp[turns], min_scale=1.0)
        return (np.pad(queries[turns], missing), keys, values, ranges[turns]), expected


def packed_attention(attention: Attention, *arguments: Array) -> AttentionOutput:
    """(queries, keys, values, ranges [T or n, 2, 2]) -> attention output, [I, H, D] and [I, H].

    ranges: what each query sees, as :meth:`model.attention.contract.Attention.attend` takes it.
    """
    queries, keys, values, ranges = arguments
    found = attention.attend(queries[None, : len(ranges)], keys[None], values[None], ranges[None])
    missing = len(queries) - len(ranges)
    return AttentionOutput(*(jnp.pad(part[0], ((0, missing), *((0, 0),) * (part.ndim - 2))) for part in found))
