"""A decoder as programs of whole steps take it: the weights of all layers stacked, and a pool of all layers.

A program loops over the stacked layers (``lax.scan``), so a step is one call. The pool with the keys and values of all
layers is in one array each. Programs that write into it carry it through the loop and are compiled with its buffers
donated, so that it is never copied. The functions of a layer are those of :mod:`model.architecture.decoder`, as in the
programs by layer (:mod:`model.layerwise`).

Shapes: T tokens of a step in tiles of T / tiles, n of them scored; B blocks of s tokens in the pool; N blocks of the
longest prefix; L layers; H query heads, K key heads, D of a head, P of a head in the pool. *weights* stands for the
stacked weights of all layers and the embedding.

Where several chips compute the model, these functions run on each of them, with its share of heads, of the MLP and of
the vocabulary. Attention needs nothing of other chips. Behind attention and behind the MLP, the chips add what each of
them has of the hidden states, which all of them have whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from model.architecture.decoder import Decoder, Layer, of_kind, rotary_embeddings
from model.architecture.projections import Total
from model.attention.contract import AttentionOutput, WholeStepAttention
from model.checks.numpy_decoder import on_host
from model.chips.axes import POOL, Axes
from model.chips.mesh import Chips
from model.linear import alone
from model.programs.decoder import DecoderParts
from model.programs.kind import array
from model.rotation import RotaryEmbedding, Rotation
from model.whole_steps.shape import StepShape

MLP_ROWS = 6_144
"""Rows of which a layer's MLP is computed at a time, at most. What is between its products takes 18 kB a row at the
shape of Qwen3-0.6B, and only packed sequences have more rows than a step.
"""


class Pool(NamedTuple):
    """The keys and values of prefixes in all layers: [L, K, B, s, P] each, in the weights' dtype.

    P: see :meth:`model.attention.contract.WholeStepAttention.pool_head_dim`. Behind the D numbers of a head are zeros.
    """

    keys: Array
    values: Array


Carried = tuple[Array, ...]
"""What the loop over the layers carries beside the hidden states: keys and values of the pool if the program writes
into it, and nothing else."""

Attend = Callable[[Layer, Array, Array, Carried], tuple[Array, Carried]]
"""Takes a layer, its hidden states [T, width], its number int32 [], and what is carried. Returns the output of
attention, [T, H, D], and what is carried on."""


AttendLayer = Callable[..., AttentionOutput]
"""Attention in any layer: takes the layer's number, int32 [], and what the attention of its kind takes."""


class StackedDecoder(DecoderParts):
    """A decoder whose steps are computed by one program each, for steps of one shape."""

    heads_by_tiles = True

    def __init__(
        self, decoder: Decoder, attention: WholeStepAttention, shape: StepShape, chips: Chips | None = None
    ) -> None:
        super().__init__(decoder, chips)
        self.attention = attention
        self.shape = shape
        self.weights: tuple[Array, ...] = (*map(self.placed, self.stacks, self.stack_axes), *self.embedding)
        self.axes: tuple[Axes, ...] = (*self.stack_axes, self.embedding_axes)
        """Of the weights."""
        self.axes_with_pool = (*self.axes, POOL, POOL)

    def pool(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Return the shapes of the pool."""
        config, shape = self.config, self.shape
        head_dim = self.attention.pool_head_dim(config.head_dim)
        sizes = config.layers, config.kv_heads, shape.blocks, shape.block_tokens, head_dim
        return (array(self.weights[0].dtype, *sizes),) * 2

    def empty_pool(self) -> Pool:
        """Return a pool of zeros, each part on its chip."""
        zeros = [
            jnp.zeros(part.shape, part.dtype) if self.chips is None else self.chips.zeros(part, POOL)
            for part in self.pool()
        ]
        return Pool(*zeros)

    def layer(self, number: int) -> Layer:
        """Return one layer as a module over copies of its weights: on the host, if several chips have them."""
        stacks = self.weights[: len(self.stacks)]
        of_layer: list[Any] = [leaf[number] if self.chips is None else on_host(leaf, number) for leaf in stacks]
        return self.layer_of(of_layer)

    def rotation(self, positions: Array) -> Callable[[Array], Rotation]:
        """Return how queries and keys at these positions, [T], are rotated in the layer of a number, int32 []."""
        # Without the barrier, the TPU compiler computes cosines and sines again in every layer.
        of_kinds = lax.optimization_barrier(rotary_embeddings(positions, self.config))  # type: ignore[no-untyped-call]
        if len(of_kinds) == 1:
            rotation = self.attention.rotation(RotaryEmbedding(*of_kinds[0]))
            return lambda _: rotation
        windowed = jnp.array(self.config.windowed)
        return lambda number: self.attention.rotation(of_kind(of_kinds, windowed[number]))

    def of_kinds(self, attend: Callable[[int | None], Callable[..., AttentionOutput]]) -> AttendLayer:
        """Return the attention of every layer, with a sliding window or without.

        attend: makes the attention in which a token sees so many tokens at most, itself among them; None: all.
        """
        everywhere = attend(None)
        if self.config.window is None:
            return lambda _, *arguments: everywhere(*arguments)
        within, windowed = attend(self.config.window.size), jnp.array(self.config.windowed)

        def of_layer(number: Array, *arguments: Array) -> AttentionOutput:
            found: AttentionOutput = lax.cond(windowed[number], within, everywhere, *arguments)
            return found

        return of_layer

    def split(self, arguments: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
        """Return the weights among the arguments of a program, and the others."""
        return arguments[: len(self.weights)], arguments[len(self.weights) :]

    def through_layers(
        self, weights: Sequence[Array], tokens: Array, attend: Attend, read: Array, *carried: Array
    ) -> tuple[Array, Carried]:
        """Return the hidden states of some rows after the last layer, float32 [n, width], and what was carried.

        read: int32 [n], the rows. Behind its attention, the last layer computes no others.
        """
        layers, of_embedding = weights[: len(self.stacks)], weights[len(self.stacks) :]
        mlp_rows = MLP_ROWS if self.chips is None else MLP_ROWS * self.chips.count

        def through(state: tuple[Array, Carried], number: Array) -> tuple[tuple[Array, Carried], None]:
            # Scanning all but the last layer of the stacks would copy them.
            hidden, carried = state
            layer = self.layer_of([lax.dynamic_index_in_dim(leaf, number, keepdims=False) for leaf in layers])
            attended, carried = attend(layer, hidden, number, carried)
            return (_output_mlp(layer, hidden, attended, self.total, mlp_rows), tuple(carried)), None

        last = self.config.layers - 1
        entered = self.vocabulary.embed(self.embedding_of(of_embedding), tokens)
        (hidden, carried), _ = lax.scan(through, (entered, carried), jnp.arange(last, dtype=jnp.int32))
        layer = self.layer_of([leaf[last] for leaf in layers])
        attended, carried = attend(layer, hidden, jnp.int32(last), carried)
        # Rows of all heads are taken as they lie in memory. Otherwise the TPU compiler moves the heads first.
        read_heads = attended.reshape(len(attended), -1)[read].reshape(len(read), *attended.shape[1:])
        return layer.output_mlp(hidden[read], read_heads, self.total), carried


def _output_mlp(layer: Layer, hidden: Array, attended: Array, total: Total = alone, mlp_rows: int = MLP_ROWS) -> Array:
    """Return the hidden states after the layer, float32 [T, width], computed in parts if there are many."""
    hidden = layer.after_attention(hidden, attended, total)
    parts = -(-len(hidden) // mlp_rows)
    if parts == 1:
        return layer.after_mlp(hidden, total)
    return jnp.concatenate([layer.after_mlp(part, total) for part in jnp.array_split(hidden, parts)])
