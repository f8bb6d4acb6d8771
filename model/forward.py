"""The forward pass: calls the programs of a step, layer by layer, over the weights and the pool of prefix blocks.

Calls are only dispatched here. Nothing waits for the device, and the returned arrays are still being computed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from model.buckets import (
    Buckets,
    EmbedKey,
    HeadKey,
    OutputMLPKey,
    PackedAttentionKey,
    PrefixAttentionKey,
    QKVKey,
    SelfAttentionKey,
    StoreKey,
)
from model.executables import Executables
from model.programs import Programs
from model.steps import Step
from scoring.layout import TokenIds


class Forward:
    """A decoder and its pool of prefix blocks on the device. Only one thread at a time may call."""

    def __init__(self, programs: Programs, executables: Executables, buckets: Buckets, blocks: int) -> None:
        self._programs = programs
        self._executables = executables
        self._layers = programs.layers
        self._buckets = buckets
        self.blocks = blocks  # of the pool
        self._pool = [self._empty_pool() for _ in programs.layers]
        heads = (buckets.step_tokens, programs.config.query_heads)
        self._no_attention = (
            jnp.zeros((*heads, programs.config.head_dim), jnp.float32),
            jnp.full(heads, -jnp.inf, jnp.float32),
        )

    def grow_pool(self, blocks: int) -> None:
        """Enlarge the pool, and keep the contents of its blocks. Its programs are compiled when they are called."""
        self.blocks = blocks
        for number, parts in enumerate(self._pool):
            self._pool[number] = tuple(
                larger.at[: len(part)].set(part) for larger, part in zip(self._empty_pool(), parts, strict=True)
            )

    def extend(self, step: Step, table: TokenIds) -> Array:
        """Return the hidden states of the extensions' last tokens: float32 [n, width], with padding behind them.

        table: int32, the blocks of the prefix that all extensions continue; anything where they have no prefix.
        """
        return self._run(step, table, block=None, wants_state=True)

    def prefill(self, step: Step, table: TokenIds, block: int, *, is_last: bool) -> Array:
        """Continue a prefix by the only extension of a step, and write its keys and values into a block.

        With ``is_last``, returns the hidden state of its last token as :meth:`extend` does; else an array that is only
        good for waiting until the step is computed.
        """
        return self._run(step, table, block, wants_state=is_last)

    def _run(self, step: Step, table: TokenIds, block: int | None, *, wants_state: bool) -> Array:
        # Transferred once here, and not with each of some hundred calls.
        blocks, prefix_ends, target, indices = jax.device_put(
            (
                table,
                step.prefix_ends,
                None if block is None else np.int32(block),
                [(batch.starts, batch.slots, batch.lengths, batch.logit_indices) for batch in step.self_attention],
            )
        )
        size, logit_rows = len(step.tokens), self._buckets.logit_rows
        run = self._executables
        qkv, output_mlp = run[QKVKey(size)], run[OutputMLPKey(size)]
        self_attention = [
            (run[SelfAttentionKey(batch.bucket.length, batch.bucket.rows, last=False)], starts, slots)
            for batch, (starts, slots, _, _) in zip(step.self_attention, indices, strict=True)
        ]
        attend_prefix = run[PrefixAttentionKey(size, self.blocks)] if step.has_prefix else None
        hidden, *rotary = run[EmbedKey(size)](*self._programs.embedding, step.tokens, step.positions)
        for number, layer in enumerate(self._layers[:-1]):
            queries, keys, values = qkv(*layer, hidden, *rotary)
            out, log_sum_exp = self._no_attention
            if attend_prefix is not None:
                out, log_sum_exp = attend_prefix(queries, *self._pool[number], blocks, prefix_ends)
            self._store(number, keys, values, target)
            for attend_items, starts, slots in self_attention:
                (out,) = attend_items(queries, keys, values, out, log_sum_exp, starts, slots)
            (hidden,) = output_mlp(*layer, hidden, out)
        last, layer = len(self._layers) - 1, self._layers[-1]
        qkv_for_logits = run[QKVKey(size, logit_rows)]
        queries, keys, values, hidden = qkv_for_logits(*layer, hidden, *rotary, step.logit_positions)
        out, log_sum_exp = self._no_attention
        if attend_prefix is not None and wants_state:
            attend_prefix = run[PrefixAttentionKey(logit_rows, self.blocks)]
            ends = step.prefix_ends[step.logit_positions]
            out, log_sum_exp = attend_prefix(queries, *self._pool[last], blocks, ends)
        self._store(last, keys, values, target)
        if not wants_state:
            return hidden  # type: ignore[no-any-return]
        for batch, (starts, _, lengths, logit_indices) in zip(step.self_attention, indices, strict=True):
            attend_items = run[SelfAttentionKey(batch.bucket.length, batch.bucket.rows, last=True)]
            (out,) = attend_items(queries, keys, values, out, log_sum_exp, starts, lengths, logit_indices)
        (hidden,) = run[OutputMLPKey(logit_rows)](*layer, hidden, out)
        return hidden  # type: ignore[no-any-return]

    def packed(
        self,
        key: PackedAttentionKey,
        tokens: TokenIds,
        positions: TokenIds,
        ranges: TokenIds,
        logit_positions: TokenIds,
    ) -> Array:
        """Return the hidden states of a packed sequence at its logit positions, float32 [n, width].

        tokens, positions: int32 [T]; ranges: int32 [T, 2, 2], what each token sees; logit_positions: int32 [n].
        """
        run, size, logit_rows = self._executables, key.tokens, key.logit_rows
        qkv, output_mlp = run[QKVKey(size)], run[OutputMLPKey(size)]
        attend = run[PackedAttentionKey(size, 0, key.dense)]
        hidden, *rotary = run[EmbedKey(size)](*self._programs.embedding, tokens, positions)
        for layer in self._layers[:-1]:
            queries, keys, values = qkv(*layer, hidden, *rotary)
            (out,) = attend(queries, keys, values, ranges)
            (hidden,) = output_mlp(*layer, hidden, out)
        layer = self._layers[-1]
        queries, keys, values, hidden = run[QKVKey(size, logit_rows)](*layer, hidden, *rotary, logit_positions)
        (out,) = run[key](queries, keys, values, ranges[logit_positions])
        (hidden,) = run[OutputMLPKey(logit_rows)](*layer, hidden, out)
        return hidden  # type: ignore[no-any-return]

    def run_head(self, key: HeadKey, hidden: ArrayLike, labels: ArrayLike) -> tuple[Array, ...]:
        """Return a head's outputs, float32 [rows, labels] each: see :meth:`model.programs.Programs.lm_head`."""
        outputs: tuple[Array, ...] = self._executables[key](*self._programs.head, hidden, labels)
        return outputs

    def _store(self, layer: int, keys: Array, values: Array, block: Array | None) -> None:
        if block is not None:
            self._pool[layer] = self._executables[StoreKey(self.blocks)](*self._pool[layer], keys, values, block)

    def _empty_pool(self) -> tuple[Array, ...]:
        return tuple(jnp.zeros(part.shape, part.dtype) for part in self._programs.pool(self.blocks))
