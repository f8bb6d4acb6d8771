"""A decoder as programs of whole steps take it: the weights of all layers stacked, and a pool of all layers.

A program loops over the stacked layers, so a step is one call. The loop is over the layers with
attention, each of which comes behind the recurrent layers before it, if there are any. The pool with the keys and
values of all layers is in one array each, and so is what recurrent layers keep. Programs that write into it carry it
through the loop and are compiled with its buffers donated, so that it is never copied. The functions of a layer are
those of :mod:`model.architecture.decoder`, as in the programs by layer (:mod:`model.layerwise`).

Shapes: T tokens of a step in tiles of T / tiles, n of them scored; B blocks of s tokens in the pool; N blocks of the
longest prefix; L layers with attention; H query heads, K key heads, D of a head, P of a head in the pool. *weights*
stands for the stacked weights of all layers and the embedding.

Where several chips compute the model, these functions run on each of them, with its share of heads, of the MLP and of
the vocabulary. Attention needs nothing of other chips. Behind attention and behind the MLP, the chips add what each of
them has of the hidden states, which all of them have whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax

from model.architecture.decoder import Decoder, Layer, RecurrentLayer, of_kind, rotary_embeddings
from model.architecture.mlp import MLP
from model.attention.contract import AttentionOutput, WholeStepAttention
from model.attention.tpu.attention import LANES
from model.checks.numpy_decoder import on_host
from model.chips.axes import POOL, POOL_OF_STATES, Axes
from model.chips.mesh import Chips
from model.chips.shares import Shares
from model.layers.linear import OfStack, Weight
from model.layers.rotation import RotaryEmbedding, Rotation
from model.programs.decoder import DecoderParts
from model.programs.kind import array, float32, int32
from model.whole_steps.recurrence import States
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
    states: States | None = None  # None: no layer is recurrent

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All arrays, as programs take and return them."""
        return (self.keys, self.values) if self.states is None else (self.keys, self.values, *self.states)

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Pool:
        """Return the pool of such arrays."""
        keys, values, *states = arrays
        return cls(keys, values, States(*states) if states else None)


AnyLayer = TypeVar("AnyLayer", Layer, RecurrentLayer)

Carried = tuple[Array, ...]
"""What the loop over the layers carries beside the hidden states: the arrays of the pool if the program writes into it,
and nothing else."""

Attend = Callable[[Layer, Array, Array, Carried], tuple[Array, Carried]]
"""Takes a layer, its hidden states [T, width], its number among its kind, int32 [], and what is carried. Returns the
output of attention, [T, H, D], and what is carried on."""

Recur = Callable[[RecurrentLayer, Array, Array, Carried], tuple[Array, Carried]]
"""Does the same for a recurrent layer: it returns what the recurrence reads, [T, Hv, Dv]."""


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
        stacks, axes = self.stacks + self.recurrent_stacks, self.stack_axes + self.recurrent_axes
        self.weights: tuple[Array, ...] = (*map(self.placed, stacks, axes), *self.embedding)
        self.axes: tuple[Axes, ...] = (*axes, self.embedding_axes)
        """Of the weights."""
        self.pool_axes: tuple[Axes, ...] = (
            (POOL, POOL) if decoder.config.recurrence is None else (POOL, POOL, *POOL_OF_STATES)
        )
        self.axes_with_pool = (*self.axes, *self.pool_axes)

    def shared(self, decoder: Decoder) -> Decoder:
        """Return the decoder over the weights on the device, instead of those in the host's memory."""
        found: Decoder = nnx.merge(*nnx.split(decoder))
        layers, recurrent, embedding = self._apart(self.weights)
        found.model.layers = self.layer_of(layers)
        if recurrent:
            found.model.recurrent_layers = self.recurrent_layer_of(recurrent)
        found.model.embed_tokens = self.embedding_of(embedding)
        found.model.norm.weight.set_value(self.head[0])
        if found.head is not None:
            found.head.weight.set_value(self.head[1])
        return found

    def pool(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Return the shapes of the pool's arrays."""
        config, shape = self.config, self.shape
        head_dim = self.attention.pool_head_dim(config.head_dim)
        sizes = config.attention_layers, config.kv_heads, shape.blocks, shape.block_tokens, head_dim
        key_values = (array(self.dtype, *sizes),) * 2
        if config.recurrence is None:
            return key_values
        inputs, states = self.state(sum(config.recurrent), shape.blocks)
        # In whole registers of a TPU, which otherwise copies all of them to write some.
        numbers, chips = inputs.shape[2] * inputs.shape[3], 1 if self.chips is None else self.chips.count
        lanes = math.gcd(LANES, numbers // chips)
        return *key_values, float32(*inputs.shape[:2], numbers // lanes, lanes), states

    def empty_pool(self) -> Pool:
        """Return a pool of zeros, each part on its chip."""
        return Pool.of(
            [
                jnp.zeros(part.shape, part.dtype) if self.chips is None else self.chips.zeros(part, axes)
                for part, axes in zip(self.pool(), self.pool_axes, strict=True)
            ]
        )

    def layer(self, number: int) -> Layer:
        """Return one layer as a module over copies of its weights in the host's memory.

        Beside the pool, a device has room for a tensor of a large layer, but not for all of them.
        """
        copied: list[Any] = [on_host(leaf, number) for leaf in self._apart(self.weights)[0]]
        return self.layer_of(copied)

    def recurrent_layer(self, number: int) -> RecurrentLayer:
        """Return one of the recurrent layers in the same way. Its channels are in the order of the checkpoint."""
        copied: list[Any] = [on_host(leaf, number) for leaf in self._apart(self.weights)[1]]
        if self.chips is not None:
            ranges = Shares.of(self.config, self.chips.count).channels
            order = np.argsort(np.concatenate([np.arange(*own) for of_chip in ranges for own in of_chip]))
            for place, axes in enumerate(self.recurrent_axes):
                if "channels" in axes:
                    copied[place] = np.take(copied[place], order, axis=axes.index("channels") - 1)
        return self.recurrent_layer_of(copied)

    def layer_of(self, weights: Sequence[Weight]) -> Layer:
        """Return a layer that computes by this platform's kernels."""
        return self._with_kernels(super().layer_of(weights))

    def recurrent_layer_of(self, weights: Sequence[Weight]) -> RecurrentLayer:
        """Return a recurrent layer in the same way."""
        return self._with_kernels(super().recurrent_layer_of(weights))

    def _with_kernels(self, layer: AnyLayer) -> AnyLayer:
        if isinstance(layer.mlp, MLP):
            layer.mlp.gated = self.attention.gated
        return layer

    def _apart(self, weights: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array], Sequence[Array]]:
        """Return the weights of layers with attention, of recurrent layers, and of the embedding."""
        first, second = len(self.stacks), len(self.stacks) + len(self.recurrent_stacks)
        return weights[:first], weights[first:second], weights[second:]

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

    def origins(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Return the shapes of what programs take for recurrent layers: where tiles begin, and windows of rows."""
        if self.config.recurrence is None:
            return ()
        return int32(self.shape.tiles), int32(self.shape.tokens, self.recurrence.inputs)

    def split(self, arguments: Sequence[Array]) -> tuple[Sequence[Array], Pool, Sequence[Array]]:
        """Return the weights and the pool among the arguments of a program, and the others."""
        first, second = len(self.weights), len(self.weights) + len(self.pool_axes)
        return arguments[:first], Pool.of(arguments[first:second]), arguments[second:]

    def through_layers(
        self,
        weights: Sequence[Array],
        tokens: Array,
        attend: Attend,
        recur: Recur | None,
        read: Array,
        *carried: Array,
    ) -> tuple[Array, Carried]:
        """Return the hidden states of some rows after the last layer, float32 [n, width], and what was carried.

        recur: None if no layer is recurrent. read: int32 [n], the rows. Behind its attention, the last layer computes
        no others.
        """
        layers, recurrent, of_embedding = self._apart(weights)

        def through(number: Array, state: tuple[Array, Carried]) -> tuple[Array, Carried]:
            hidden, carried = self._through_recurrent(recurrent, recur, *state, number)
            layer = self.layer_of(_of_stack(layers, number))
            attended, carried = attend(layer, hidden, number, carried)
            return self._output_mlp(layer, hidden, attended), tuple(carried)

        last = self.config.attention_layers - 1
        entered = self.vocabulary.embed(self.embedding_of(of_embedding), tokens)
        state: tuple[Array, Carried] = lax.fori_loop(jnp.int32(0), jnp.int32(last), through, (entered, tuple(carried)))
        hidden, carried = self._through_recurrent(recurrent, recur, *state, jnp.int32(last))
        layer = self.layer_of(_of_stack(layers, jnp.int32(last)))
        attended, carried = attend(layer, hidden, jnp.int32(last), carried)
        # Rows of all heads are taken as they lie in memory. Otherwise the TPU compiler moves the heads first.
        read_heads = attended.reshape(len(attended), -1)[read].reshape(len(read), *attended.shape[1:])
        return layer.output_mlp(hidden[read], read_heads, self.total), carried

    def _through_recurrent(
        self, weights: Sequence[Array], recur: Recur | None, hidden: Array, carried: Carried, before: Array
    ) -> tuple[Array, Carried]:
        """Take hidden states through the recurrent layers that come before a layer with attention, int32 []."""
        if recur is None:
            return hidden, carried
        counts = np.array(self.recurrence.runs, np.int32)
        firsts = jnp.array(np.cumsum(counts) - counts)

        def through(index: Array, state: tuple[Array, Carried]) -> tuple[Array, Carried]:
            hidden, carried = state
            number = firsts[before] + index
            layer = self.recurrent_layer_of(_of_stack(weights, number))
            read, carried = recur(layer, hidden, number, carried)
            return self._output_mlp(layer, hidden, read), tuple(carried)

        # Where their number is always the same, the compiler should know it.
        count = int(counts[0]) if len(set(counts.tolist())) == 1 else jnp.array(counts)[before]
        found: tuple[Array, Carried] = lax.fori_loop(0, count, through, (hidden, tuple(carried)))
        return found

    def _output_mlp(self, layer: Layer | RecurrentLayer, hidden: Array, mixed: Array) -> Array:
        """Return the hidden states after the layer, float32 [T, width]; its MLP is in parts if there are many."""
        most = MLP_ROWS if self.chips is None else MLP_ROWS * self.chips.count
        hidden = layer.after_mixing(hidden, mixed, self.total)
        parts = -(-len(hidden) // most)
        if parts == 1:
            return layer.after_mlp(hidden, self.total)
        return jnp.concatenate([layer.after_mlp(part, self.total) for part in jnp.array_split(hidden, parts)])


def _of_stack(stacks: Sequence[Array], number: Array) -> list[OfStack]:
    """Return the weights of one layer."""
    return [OfStack(leaf, number) for leaf in stacks]
