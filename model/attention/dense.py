"""Attention with an explicit mask tensor: the simple form that tiled attention is checked against.

The mask takes S x S integers, and the scores of one head as much in float32. Memory grows with the square of the
sequence, to 256 MB each at 8,192 tokens, the default limit of packed sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from model.attention.contract import AttentionOutput, PrefixBlocks, multiply, softmax_part, visible
from model.layers.linear import capped


@dataclass(frozen=True, slots=True)
class DenseAttention:
    """An :class:`model.attention.contract.Attention` without attention to prefix blocks."""

    cap: float | None = None  # of scores, see model.layers.linear.capped

    def attend(self, queries: Array, keys: Array, values: Array, ranges: Array) -> AttentionOutput:
        B, Q, H, D = queries.shape
        S, K = keys.shape[1:3]
        mask = visible(ranges, jnp.arange(S, dtype=jnp.int32)).astype(jnp.int32)  # [1 or B, Q, S]
        mask = jnp.broadcast_to(mask, (B, Q, S))

        def head(index: Array) -> AttentionOutput:
            scores = multiply("bqd,bsd->bqs", queries[:, :, index], keys[:, :, index // (H // K)]) * D**-0.5
            scores = jnp.where(mask == 1, capped(scores, self.cap), -jnp.inf)
            return softmax_part(scores, values[:, :, index // (H // K)], "bqs,bsd->bqd")

        attended = lax.map(head, jnp.arange(H, dtype=jnp.int32))
        return AttentionOutput(*(jnp.moveaxis(part, 0, 2) for part in attended))

    def attend_prefix(
        self, queries: Array, prefix: PrefixBlocks, ends: Array, begins: Array | None = None
    ) -> AttentionOutput:
        """Not needed, since packed sequences contain their prefixes."""
        raise NotImplementedError
