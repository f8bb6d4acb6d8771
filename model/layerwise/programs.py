"""The programs that run on the device, as functions of flat arguments, which are compiled ahead of time.

A layer is four programs: queries, keys and values (QKV); attention to the prefix; self-attention within the items; and
the output projection with the MLP. Weights are arguments, because a compiler would copy and fold constants, and all
layers share their programs. Calling an executable on a flat tuple of arrays takes a tenth of the time that a tree of
modules takes.

Shapes: T tokens of a step, n of them scored; I = ``Buckets.padded_rows(T)``, to which queries, keys, values and
attention outputs are padded between programs; R items of at most L tokens; H query heads, K key heads, D of a head.
*layer* stands for the weights of a layer. Programs are pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax

from model.architecture.decoder import Decoder, Embedding, Layer, Norm, rotary_embedding
from model.architecture.heads import lm_head
from model.attention.contract import Attention, AttentionOutput, PrefixBlocks, causal, merge
from model.attention.dense import DenseAttention
from model.buckets import Buckets
from model.linear import to_pool_dtype
from model.platforms import Platform
from model.rotation import RotaryEmbedding
from scoring.layout import Head

Program = Callable[..., tuple[Array, ...]]


class Programs:
    """A decoder taken apart into programs, and the weights that they take.

    attention: None for the platform's own; put: puts a weight on the device, or leaves it where programs are only
    compiled.
    """

    def __init__(
        self,
        decoder: Decoder,
        platform: Platform,
        buckets: Buckets,
        attention: Attention | None = None,
        put: Callable[[Any], Any] = jax.device_put,
    ) -> None:
        self.config = decoder.config
        self.dtype = decoder.head_kernel().dtype
        self._pool_dtype = platform.pool_dtype(self.dtype)
        self._attention = attention or platform.attention(self.dtype)
        self._buckets = buckets
        graph, stacked = nnx.split(decoder.model.layers)
        self._layer: nnx.GraphDef[Layer] = graph
        leaves, self._layer_tree = jax.tree.flatten(stacked)
        per_leaf = [[put(layer) for layer in np.asarray(leaf)] for leaf in leaves]  # on a CPU, views of the stacks
        self.layers: list[tuple[Array, ...]] = list(zip(*per_leaf, strict=True))
        embedding, self._embedding_tree = jax.tree.flatten(nnx.split(decoder.model.embed_tokens)[1])
        self._embedding: nnx.GraphDef[Embedding] = nnx.graphdef(decoder.model.embed_tokens)
        self.embedding: tuple[Array, ...] = tuple(map(put, embedding))
        self.embedding_as_rows = decoder.model.embed_tokens.as_rows
        self._norm: nnx.GraphDef[Norm] = nnx.graphdef(decoder.model.norm)
        kernel = self.embedding[0] if decoder.lm_head is None else put(decoder.head_kernel())
        self.head: tuple[Array, Array] = (put(decoder.model.norm.weight[...]), kernel)
        self.head_as_rows = decoder.head_as_rows

    def pool(self, blocks: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Return the shapes of a layer's pool: keys and values of :class:`model.attention.contract.PrefixBlocks`."""
        config, size, dtype = self.config, self._buckets.block_tokens, self._pool_dtype
        shapes = (config.head_dim, size), (size, config.head_dim)
        keys, values = (jax.ShapeDtypeStruct((blocks, config.kv_heads, *shape), dtype) for shape in shapes)  # type: ignore[no-untyped-call]
        return keys, values

    def layer(self, number: int) -> Layer:
        """Return one layer as a module over the served weights."""
        return self._of_layer(self.layers[number])

    def embed(self, *arguments: Array) -> tuple[Array, ...]:
        """(*embedding, tokens [T], positions [T]) -> hidden float32 [T, width], cosines and sines of the positions."""
        *weights, tokens, positions = arguments
        embedding: Embedding = nnx.merge(self._embedding, jax.tree.unflatten(self._embedding_tree, weights))
        return embedding(tokens), *rotary_embedding(positions, self.config)

    def qkv(self, *arguments: Array) -> tuple[Array, ...]:
        """(*layer, hidden, cos, sin) -> queries [I, H, D], keys and values [I, K, D]."""
        *weights, hidden, cos, sin = arguments
        layer, rotary = self._of_layer(weights), RotaryEmbedding(cos, sin)
        return self._pad(layer.queries(hidden, rotary), *layer.key_values(hidden, rotary))

    def qkv_for_logits(self, *arguments: Array) -> tuple[Array, ...]:
        """(*layer, hidden, cos, sin, logit positions [n]) -> the same with queries of the logit positions alone.

        The last output is the hidden states of these positions, float32 [n, width].
        """
        *weights, hidden, cos, sin, positions = arguments
        layer, rotary = self._of_layer(weights), RotaryEmbedding(cos, sin)
        selected = hidden[positions]
        queries = layer.queries(selected, RotaryEmbedding(cos[positions], sin[positions]))
        return *self._pad(queries, *layer.key_values(hidden, rotary)), selected

    def prefix_attention(self, *arguments: Array) -> tuple[Array, ...]:
        """(queries, pool keys, pool values, table, prefix ends [T]) -> out float32 [I, H, D], log-sum-exp [I, H]."""
        queries, keys, values, table, ends = arguments
        output = self._attention.attend_prefix(queries[: len(ends)], PrefixBlocks(keys, values, table), ends)
        size = self._buckets.padded_rows(len(ends)) - len(ends)
        log_sum_exp = jnp.pad(output.log_sum_exp, ((0, size), (0, 0)), constant_values=-jnp.inf)
        return jnp.pad(output.out, ((0, size), (0, 0), (0, 0))), log_sum_exp

    def self_attention(self, length: int) -> Program:
        """(queries, keys, values, out, log-sum-exp, starts [R], slots [I]) -> attention output, float32 [I, H, D].

        The program merges each token's attention to its own item into ``out``, its attention to the prefix. starts and
        slots: see :class:`model.layerwise.steps.SelfAttentionBatch`. Tokens of other length buckets keep their ``out``.
        """

        def program(
            queries: Array, keys: Array, values: Array, out: Array, log_sum_exp: Array, starts: Array, slots: Array
        ) -> tuple[Array]:
            positions = _item_positions(starts, length, len(keys))
            padded = self._attention.attend(queries[positions], keys[positions], values[positions], causal(length))
            own = (part.reshape(-1, *part.shape[2:])[jnp.maximum(slots, 0)] for part in padded)
            merged = merge(AttentionOutput(out, log_sum_exp), AttentionOutput(*own)).out
            return (jnp.where((slots >= 0)[:, None, None], merged, out),)

        return program

    def self_attention_for_logits(self, length: int) -> Program:
        """(queries, keys, values, out, log-sum-exp, starts, lengths, logit indices) -> attention output [I, H, D].

        The same for the query of each item's last token alone: the query and the output of item ``r`` stand at
        ``logit_indices[r]``. Outputs elsewhere stay, and an index of I writes nothing.
        """

        def program(
            queries: Array,
            keys: Array,
            values: Array,
            out: Array,
            log_sum_exp: Array,
            starts: Array,
            lengths: Array,
            logit_indices: Array,
        ) -> tuple[Array]:
            positions = _item_positions(starts, length, len(keys))
            ranges = jnp.stack([jnp.zeros_like(lengths), lengths], axis=-1)[:, None, None]
            present = jnp.minimum(logit_indices, len(queries) - 1)
            padded = self._attention.attend(queries[present][:, None], keys[positions], values[positions], ranges)
            own = AttentionOutput(*(part[:, 0] for part in padded))
            merged = merge(AttentionOutput(out[present], log_sum_exp[present]), own)
            return (out.at[logit_indices].set(merged.out, mode="drop"),)

        return program

    def packed_attention(self, *, dense: bool) -> Program:
        """(queries, keys, values, ranges [T or n, 2, 2]) -> attention output, float32 [I, H, D].

        ranges: what each query sees, as :meth:`model.attention.contract.Attention.attend` takes it.
        """
        attention = DenseAttention() if dense else self._attention

        def program(queries: Array, keys: Array, values: Array, ranges: Array) -> tuple[Array]:
            out = attention.attend(queries[None, : len(ranges)], keys[None], values[None], ranges[None]).out[0]
            return (jnp.pad(out, ((0, len(queries) - len(ranges)), (0, 0), (0, 0))),)

        return program

    def output_mlp(self, *arguments: Array) -> tuple[Array]:
        """(*layer, hidden, attention output) -> hidden, float32 [T, width]."""
        *weights, hidden, attended = arguments
        return (self._of_layer(weights).output_mlp(hidden, attended[: len(hidden)]),)

    def store(
        self, pool_keys: Array, pool_values: Array, keys: Array, values: Array, blocks: Array
    ) -> tuple[Array, Array]:
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

    def lm_head(self, head: Head) -> Program:
        """(*head, hidden, labels): see :func:`model.architecture.heads.lm_head`."""
        return lm_head(head, self._norm, as_rows=self.head_as_rows)

    def _of_layer(self, weights: Sequence[Array]) -> Layer:
        layer: Layer = nnx.merge(self._layer, jax.tree.unflatten(self._layer_tree, weights))
        return layer

    def _pad(self, queries: Array, keys: Array, values: Array) -> tuple[Array, Array, Array]:
        def padded(array: Array) -> Array:
            missing = self._buckets.padded_rows(len(array)) - len(array)
            return jnp.pad(array, ((0, missing), (0, 0), (0, 0))) if missing else array

        return padded(queries), padded(keys), padded(values)


def _item_positions(starts: Array, length: int, size: int) -> Array:
    """Return where in a step the tokens of items are, int32 [R, length]; behind an item's end, any tokens."""
    return jnp.minimum(starts[:, None] + jnp.arange(length, dtype=jnp.int32), size - 1)
