"""A decoder taken apart into flat tuples of weights, which programs take as arguments.

Weights are arguments, because a compiler would copy and fold constants. Calling an executable on a flat tuple of arrays
takes a tenth of the time that a tree of modules takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
from flax import nnx
from jax import Array

from model.architecture.decoder import Decoder, Layer, RecurrentLayer
from model.architecture.projections import Embedding, Norm, Total
from model.architecture.recurrence import Recurrence
from model.checks import numpy_decoder
from model.checks.cases import head_states
from model.chips.axes import Axes, parameter_axes
from model.chips.mesh import Chips, total
from model.chips.shares import Shares
from model.chips.vocabulary import OnOneChip, OverChips, Vocabulary
from model.layers.linear import Weight, alone
from model.programs.kind import Source, float32


class DecoderParts:
    """What both ways to compute steps have in common: the embedding, the head, and layers made of weights.

    chips: those that compute the model together; None for one chip.
    """

    heads_by_tiles = False
    """Whether single columns of the head's kernel are read as a TPU's memory holds them."""

    def __init__(self, decoder: Decoder, chips: Chips | None = None) -> None:
        self.config = decoder.config
        self.chips = chips
        self.total: Total = alone if chips is None else total
        own = None if chips is None else Shares.of(decoder.config, chips.count).own
        self.vocabulary: Vocabulary = OnOneChip() if own is None else OverChips(own.vocabulary)
        self.outputs = OnOneChip() if decoder.config.classes else self.vocabulary
        """What the head has logits of: the vocabulary, or classes, of which every chip has all."""
        graph, stacked = nnx.split(decoder.model.layers)
        self._layer: nnx.GraphDef[Layer] = graph
        self.stacks, self._layer_tree = jax.tree.flatten(stacked)
        """The weights of all layers with attention, [layers, ...] each, where they were loaded."""
        self._recurrent: nnx.GraphDef[RecurrentLayer] | None = None
        self.recurrent_axes: tuple[Axes, ...] = ()
        self.recurrent_stacks: list[Array] = []
        """The weights of all recurrent layers, in the same way."""
        if decoder.model.recurrent_layers is not None:
            self._recurrent, of_recurrent = nnx.split(decoder.model.recurrent_layers)
            self.recurrent_stacks, self._recurrent_tree = jax.tree.flatten(of_recurrent)
            self.recurrent_axes = _axes(of_recurrent)
        self.stack_axes = _axes(stacked)
        self._embedding: nnx.GraphDef[Embedding] = nnx.graphdef(decoder.model.embed_tokens)
        embedding, self._embedding_tree = jax.tree.flatten(nnx.split(decoder.model.embed_tokens)[1])
        self.embedding_axes: Axes = parameter_axes(("model", "embed_tokens", "weight"))
        self.embedding: tuple[Array, ...] = tuple(self.placed(part, self.embedding_axes) for part in embedding)
        self.embedding_as_rows = decoder.model.embed_tokens.as_rows
        self.norm: nnx.GraphDef[Norm] = nnx.graphdef(decoder.model.norm)
        tied = decoder.head is None
        own_axes = parameter_axes(("score" if decoder.config.classes else "lm_head", "weight"))
        kernel_axes = self.embedding_axes if tied else own_axes
        self.head_axes: tuple[Axes, ...] = (parameter_axes(("model", "norm", "weight")), kernel_axes)
        kernel = self.embedding[0] if tied else self.placed(decoder.head_kernel(), kernel_axes)
        self.head: tuple[Array, ...] = (self.placed(decoder.model.norm.weight.get_value(), self.head_axes[0]), kernel)
        if decoder.head is not None and decoder.head.bias is not None:
            self.head_axes += (parameter_axes(("score", "bias")),)
            self.head += (self.placed(decoder.head.bias.get_value(), self.head_axes[-1]),)
        self.head_as_rows = decoder.head_as_rows
        self.dtype = kernel.dtype

    @property
    def structure(self) -> tuple[object, ...]:
        """What decoders must have in common whose layers are computed by the same programs."""
        leaves = [*self.stacks, *self.recurrent_stacks]
        return self._layer_tree, *(leaf.shape for leaf in leaves)

    def shared(self, decoder: Decoder) -> Decoder:
        """Return the decoder that this was made of, with weights that another one can share without a copy."""
        return decoder

    def layer_of(self, weights: Sequence[Weight]) -> Layer:
        """Return a layer as a module over its weights."""
        layer: Layer = nnx.merge(self._layer, jax.tree.unflatten(self._layer_tree, weights))
        return layer

    def recurrent_layer_of(self, weights: Sequence[Weight]) -> RecurrentLayer:
        """Return a recurrent layer as a module over its weights."""
        assert self._recurrent is not None
        layer: RecurrentLayer = nnx.merge(self._recurrent, jax.tree.unflatten(self._recurrent_tree, weights))
        return layer

    @property
    def recurrence(self) -> Recurrence:
        """The sizes of recurrent layers, if there are some."""
        assert self.config.recurrence is not None
        return self.config.recurrence

    def state(self, *many: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Return the shapes of what a recurrent layer keeps of a sequence, or of so many of them.

        They are the last inputs of the convolution, [inputs - 1, C], and the state, [Hv, Dk, Dv].
        """
        sizes = self.recurrence
        inputs = float32(*many, sizes.inputs - 1, sizes.channels)
        return inputs, float32(*many, sizes.value_heads, sizes.key_dim, sizes.value_dim)

    def embedding_of(self, weights: Sequence[Array]) -> Embedding:
        """Return the embedding as a module over its weights."""
        embedding: Embedding = nnx.merge(self._embedding, jax.tree.unflatten(self._embedding_tree, weights))
        return embedding

    def source(
        self,
        function: Callable[..., tuple[Array, ...]],
        arguments: Sequence[Any],
        axes: Sequence[Axes],
        outputs: Sequence[Axes],
        donated: tuple[int, ...] = (),
    ) -> Source:
        """Return what a program is compiled from, for one chip or for all that compute the model.

        axes: of the first arguments; those behind them are whole on every chip.
        """
        if self.chips is None:
            return Source(function, tuple(arguments), donated)
        program = self.chips.program(function, len(arguments), axes, outputs)
        return Source(program, self.chips.shapes(arguments, axes), donated)

    def placed(self, weight: Any, axes: Axes) -> Array:
        """Put a weight on the device, or its parts on theirs."""
        return on_device(weight) if self.chips is None else self.chips.put(weight, axes)

    def layer(self, number: int) -> Layer:
        """Return one of the layers with attention as a module over the served weights, or over copies of them."""
        raise NotImplementedError

    def recurrent_layer(self, number: int) -> RecurrentLayer:
        """Return one of the recurrent layers in the same way."""
        raise NotImplementedError

    @cached_property
    def over_vocabulary(self) -> numpy_decoder.OverVocabulary:
        """What NumPy knows of the logits of the states by which all heads are checked."""
        return numpy_decoder.over_vocabulary(self, head_states(self.config.width))


def _axes(stacks: Any) -> tuple[Axes, ...]:
    """Return the axes of the weights of layers."""
    paths = (map(_name, path) for path, _ in jax.tree_util.tree_leaves_with_path(stacks))
    return tuple(parameter_axes([*filter(None, path)]) for path in paths)


def _name(entry: Any) -> str | None:
    """Return the name of an attribute in the path of a weight; None for what flax wraps it in."""
    return str(entry.key) if isinstance(entry, jax.tree_util.DictKey) else None


def on_device(weight: Any) -> Array:
    """Put a weight on the device, or return it where it is only the shape of one, to be compiled for."""
    return weight if isinstance(weight, jax.ShapeDtypeStruct) else jax.device_put(weight)  # type: ignore[return-value]
