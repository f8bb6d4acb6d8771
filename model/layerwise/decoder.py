"""A decoder as its layers, and the shapes of what their programs hand on.

A layer with attention is four programs, the same for all of them: queries, keys and values (QKV); attention to the
prefix; self-attention within the items; and the output projection with the MLP. A recurrent layer is three: what the
recurrence takes; the recurrence within the items, from the prefix's state on; and the last program, which is its own.

Shapes: T tokens of a step, n of them scored; I = ``Buckets.padded_rows(T)``, to which queries, keys, values and
attention outputs are padded between programs; R items of at most L tokens; H query heads, K key heads, D of a head; of
recurrent layers, Hv heads of values, Dk and Dv numbers of a head of keys and of values, C channels of the convolution.
*layer* stands for the weights of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from model.architecture.decoder import Decoder, Layer, RecurrentLayer
from model.architecture.experts import EXPERTS
from model.attention.contract import Attention
from model.attention.tiles import TiledAttention
from model.buckets import Buckets
from model.chips.axes import Axes
from model.platforms import Platform
from model.programs.decoder import DecoderParts, on_device
from model.programs.kind import array, float32

Shape = jax.ShapeDtypeStruct


class LayerwiseDecoder(DecoderParts):
    """A decoder whose layers are computed one by one.

    longest: blocks of the longest prefix; attention: None for the platform's own.
    """

    def __init__(
        self, decoder: Decoder, platform: Platform, buckets: Buckets, longest: int, attention: Attention | None = None
    ) -> None:
        super().__init__(decoder)
        self.buckets = buckets
        self.longest = longest
        self.attention = attention or TiledAttention(cap=decoder.config.caps.scores)
        self._pool_dtype = platform.pool_dtype(self.dtype)
        self.layers = self._apart(self.stacks, self.stack_axes)
        """The weights of each layer with attention."""
        self.recurrent_layers = self._apart(self.recurrent_stacks, self.recurrent_axes)

    def _apart(self, stacks: Sequence[Array], axes: Sequence[Axes]) -> list[tuple[Array, ...]]:
        """Return the weights of each layer. On a CPU, they are views of the stacks."""
        per_leaf = []
        for stack, of_stack in zip(stacks, axes, strict=True):
            leaf = np.asarray(stack)
            if of_stack[1] == EXPERTS and self._pool_dtype == np.uint16:
                leaf = leaf.view(np.uint16)  # see model.architecture.mixture.Experts
            per_leaf.append([on_device(layer) for layer in leaf])
        return list(zip(*per_leaf, strict=True))

    def layer(self, number: int) -> Layer:
        """Return one of the layers with attention as a module over the served weights."""
        return self.layer_of(self.layers[number])

    def recurrent_layer(self, number: int) -> RecurrentLayer:
        """Return one of the recurrent layers in the same way."""
        return self.recurrent_layer_of(self.recurrent_layers[number])

    def recurrent_inputs(self, tokens: int) -> tuple[Shape, Shape, Shape]:
        """Return the shapes of what the recurrence takes of so many tokens: [I, C], [I, Hv] and [I, Hv]."""
        rows, sizes = self.buckets.padded_rows(tokens), self.recurrence
        return float32(rows, sizes.channels), *(float32(rows, sizes.value_heads),) * 2

    def recurred(self, tokens: int) -> Shape:
        """Return the shape of what the recurrence gives for so many tokens, [I, Hv, Dv]."""
        return float32(self.buckets.padded_rows(tokens), self.recurrence.value_heads, self.recurrence.value_dim)

    def pool(self, blocks: int) -> tuple[Shape, Shape]:
        """Return the shapes of a layer's pool: keys and values of :class:`model.attention.contract.PrefixBlocks`."""
        config, size, dtype = self.config, self.buckets.block_tokens, self._pool_dtype
        heads = blocks, config.kv_heads
        return array(dtype, *heads, config.head_dim, size), array(dtype, *heads, size, config.head_dim)

    def hidden(self, tokens: int) -> Shape:
        """Return the shape of hidden states."""
        return float32(tokens, self.config.width)

    def rotary(self, tokens: int) -> tuple[Shape, Shape]:
        """Return the shapes of cosines and sines of positions."""
        return (float32(tokens, self.config.rope.pairs(self.config.head_dim)),) * 2

    def queries(self, tokens: int) -> Shape:
        """Return the shape of the queries of so many tokens, [I, H, D]."""
        return array(self.dtype, self.buckets.padded_rows(tokens), self.config.query_heads, self.config.head_dim)

    def key_values(self, tokens: int) -> tuple[Shape, Shape]:
        """Return the shapes of their keys and values, [I, K, D] each."""
        return (array(self.dtype, self.buckets.padded_rows(tokens), self.config.kv_heads, self.config.head_dim),) * 2

    def attended(self, tokens: int) -> tuple[Shape, Shape]:
        """Return the shapes of their attention output, [I, H, D], and its log-sum-exp, [I, H]."""
        heads = self.buckets.padded_rows(tokens), self.config.query_heads
        return float32(*heads, self.config.head_dim), float32(*heads)

    def padded(self, *parts: Array) -> tuple[Array, ...]:
        """Fill arrays [T, ...] up to [I, ...] with their last rows, on which no result depends.

        They are gathered: XLA on a CPU takes a branch for each number that it pads, and for all that is fused with it.
        """

        def of(part: Array) -> Array:
            size = self.buckets.padded_rows(len(part))
            return part if size == len(part) else part[jnp.minimum(jnp.arange(size), len(part) - 1)]

        return tuple(map(of, parts))
