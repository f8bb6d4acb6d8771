"""The programs that compute a whole step, as functions of flat arguments, which are compiled ahead of time.

A program loops over the stacked layers (``lax.scan``), so a step is one call. The pool with the keys and values of all
layers is in one array each. Programs that write into it carry it through the loop and are compiled with its buffers
donated, so that it is never copied. The functions of a layer are those of :mod:`model.architecture.decoder`, as in the
programs by layer (:mod:`model.layerwise.programs`).

Shapes: T tokens of a step in tiles of T / tiles, n of them scored; B blocks of s tokens in the pool; N blocks of the
longest prefix; L layers; H query heads, K key heads, D of a head, P of a head in the pool. *weights* stands for the
stacked weights of all layers and the embedding. Programs are pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from model.architecture.decoder import Decoder, Embedding, KeyValues, Layer, Norm, rotary_embedding
from model.architecture.heads import lm_head
from model.attention.contract import ItemSlots, WholeStepAttention
from model.attention.dense import DenseAttention
from model.rotation import RotaryEmbedding, Rotation
from scoring.layout import Head

Program = Callable[..., tuple[Array, ...]]


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


class WholeStepPrograms:
    """A decoder as programs of whole steps, and the weights that they take."""

    def __init__(self, decoder: Decoder, attention: WholeStepAttention) -> None:
        self.config = decoder.config
        self._attention = attention
        graph, stacked = nnx.split(decoder.model.layers)
        self._layer: nnx.GraphDef[Layer] = graph
        layers, self._layer_tree = jax.tree.flatten(stacked)
        self._embedding: nnx.GraphDef[Embedding] = nnx.graphdef(decoder.model.embed_tokens)
        embedding, self._embedding_tree = jax.tree.flatten(nnx.split(decoder.model.embed_tokens)[1])
        self._layer_leaves = len(layers)
        self.embedding: tuple[Array, ...] = tuple(map(_on_device, embedding))
        self.embedding_as_rows = decoder.model.embed_tokens.as_rows
        self.weights: tuple[Array, ...] = (*map(_on_device, layers), *self.embedding)
        self._norm: nnx.GraphDef[Norm] = nnx.graphdef(decoder.model.norm)
        kernel = self.embedding[0] if decoder.lm_head is None else _on_device(decoder.lm_head.weight.get_value())
        self.head: tuple[Array, Array] = (_on_device(decoder.model.norm.weight.get_value()), kernel)
        self.head_as_rows = decoder.head_as_rows
        self.dtype = kernel.dtype

    def pool(self, blocks: int, block_tokens: int) -> Pool:
        """Return the shapes of a pool."""
        config = self.config
        head_dim = self._attention.pool_head_dim(config.head_dim)
        shape = (config.layers, config.kv_heads, blocks, block_tokens, head_dim)
        dtype = self.weights[0].dtype
        return Pool(jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(shape, dtype))  # type: ignore[no-untyped-call, arg-type]

    def extend(self, *arguments: Array) -> tuple[Array, ...]:
        """Compute items behind prefixes in the pool.

        (*weights, pool keys, pool values, tokens [T], positions [T], *tiles, *items, logit positions [n]) -> hidden
        states of the logit positions, float32 [n, width]. tiles: table [tiles, N], counts [tiles] and ends [T] of
        :meth:`model.attention.contract.WholeStepAttention.prefix`; items:
        :class:`model.attention.contract.ItemSlots`. A row sees the first ``ends[t]`` tokens of its tile's prefix, and
        the tokens of its own item up to itself.
        """
        weights, (keys, values, tokens, positions, *step, logit_positions) = self._split(arguments)
        attend_extension = self._attention.extension(ItemSlots(*step[3:]), keys.shape[3], *step[:3])
        rotation = self._rotation(positions)

        def attend(layer: Layer, hidden: Array, number: Array, carried: Carried) -> tuple[Array, Carried]:
            queries, own = layer.queries(hidden, rotation), layer.key_values(hidden, rotation)
            return attend_extension(queries, *own, keys, values, number).out, carried

        hidden, _ = self._through_layers(weights, tokens, attend, logit_positions)
        return (hidden,)

    def prefill(self, *arguments: Array) -> tuple[Array, ...]:
        """Write the keys and values of prefixes into the pool.

        (*weights, pool keys, pool values, tokens [T], positions [T], *tiles, places [tiles, 2], logit positions [n]) ->
        hidden states of the logit positions, float32 [n, width], and the pool, whose buffers are donated. places: the
        block that the keys and values of each tile go to, and where in the block they begin. All keys and values of a
        layer are stored before any row of the step looks at them, so a step may hold several tiles of one prefix. A row
        sees the first ``ends[t]`` tokens of its prefix, itself among them.
        """
        weights, (keys, values, tokens, positions, *tiles, places, logit_positions) = self._split(arguments)
        attend_prefix = self._attention.prefix(keys.shape[3], *tiles)
        rotation = self._rotation(positions)

        def attend(layer: Layer, hidden: Array, number: Array, carried: Carried) -> tuple[Array, Carried]:
            pool = _stored(Pool(*carried), layer.key_values(hidden, rotation), number, places)
            queries = layer.queries(hidden, rotation)
            return attend_prefix(queries, *pool, number).out, pool

        hidden, pool = self._through_layers(weights, tokens, attend, logit_positions, keys, values)
        return hidden, *pool

    def packed(self, *, dense: bool) -> Program:
        """Return the program for packed sequences, which contain their prefixes; dense: with an explicit mask.

        (*weights, tokens [T], positions [T], ranges [T, 2, 2], logit positions [n]) -> hidden states of the logit
        positions, float32 [n, width]. ranges: what each token sees, as in
        :meth:`model.attention.contract.WholeStepAttention.packed`.
        """

        def program(*arguments: Array) -> tuple[Array, ...]:
            weights, (tokens, positions, ranges, logit_positions) = self._split(arguments)
            attend_packed = self._attention.packed(ranges)
            rotation = self._rotation(positions)

            def attend(layer: Layer, hidden: Array, number: Array, carried: Carried) -> tuple[Array, Carried]:
                queries, own = layer.queries(hidden, rotation), layer.key_values(hidden, rotation)
                if dense:
                    batch = [part[None] for part in (queries, *own, ranges)]
                    return DenseAttention().attend(batch[0], batch[1], batch[2], batch[3]).out[0], carried
                return attend_packed(queries, *own).out, carried

            hidden, _ = self._through_layers(weights, tokens, attend, logit_positions)
            return (hidden,)

        return program

    def lm_head(self, head: Head) -> Program:
        """(*head, hidden, labels): see :func:`model.architecture.heads.lm_head`."""
        return lm_head(head, self._norm, as_rows=self.head_as_rows, by_tiles=True)

    def layer(self, number: int) -> Layer:
        """Return one layer as a module over copies of its weights."""
        return self._of_layer([leaf[number] for leaf in self.weights[: self._layer_leaves]])

    def _rotation(self, positions: Array) -> Rotation:
        # Without the barrier, the TPU compiler computes cosines and sines again in every layer.
        rotary = lax.optimization_barrier(rotary_embedding(positions, self.config))  # type: ignore[no-untyped-call]
        return self._attention.rotation(RotaryEmbedding(*rotary))

    def _of_layer(self, weights: Sequence[Array]) -> Layer:
        layer: Layer = nnx.merge(self._layer, jax.tree.unflatten(self._layer_tree, weights))
        return layer

    def _split(self, arguments: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
        return arguments[: len(self.weights)], arguments[len(self.weights) :]

    def _through_layers(
        self, weights: Sequence[Array], tokens: Array, attend: Attend, read: Array, *carried: Array
    ) -> tuple[Array, Carried]:
        """Return the hidden states of some rows after the last layer, float32 [n, width], and what was carried.

        read: int32 [n], the rows. Behind its attention, the last layer computes no others.
        """
        layers, of_embedding = weights[: self._layer_leaves], weights[self._layer_leaves :]
        embedding: Embedding = nnx.merge(self._embedding, jax.tree.unflatten(self._embedding_tree, of_embedding))

        def through(state: tuple[Array, Carried], number: Array) -> tuple[tuple[Array, Carried], None]:
            # Scanning all but the last layer of the stacks would copy them.
            hidden, carried = state
            layer = self._of_layer([lax.dynamic_index_in_dim(leaf, number, keepdims=False) for leaf in layers])
            attended, carried = attend(layer, hidden, number, carried)
            return (layer.output_mlp(hidden, attended), tuple(carried)), None

        last = self.config.layers - 1
        (hidden, carried), _ = lax.scan(through, (embedding(tokens), carried), jnp.arange(last, dtype=jnp.int32))
        layer = self._of_layer([leaf[last] for leaf in layers])
        attended, carried = attend(layer, hidden, jnp.int32(last), carried)
        # Rows of all heads are taken as they lie in memory. Otherwise the TPU compiler moves the heads first.
        read_heads = attended.reshape(len(attended), -1)[read].reshape(len(read), *attended.shape[1:])
        return layer.output_mlp(hidden[read], read_heads), carried


def _stored(pool: Pool, new: KeyValues, layer: Array, places: Array) -> Pool:
    """Write the keys and values of a step, [T, K, D], into a layer of the pool, tile by tile."""
    tiles = len(places)

    def written(part: Array, rows: Array) -> Array:
        rows = jnp.pad(rows, ((0, 0), (0, 0), (0, part.shape[-1] - rows.shape[-1])))
        tiled = rows.reshape(tiles, -1, *rows.shape[1:]).swapaxes(1, 2)  # [tiles, K, T / tiles, P]
        for number in range(tiles):
            start = (layer, 0, places[number, 0], places[number, 1], 0)
            part = lax.dynamic_update_slice(part, tiled[number][None, :, None], start)
        return part

    return Pool(written(pool.keys, new.keys), written(pool.values, new.values))


def _on_device(weight: Any) -> Array:
    """Put a weight on the device, or return it where it is only the shape of one, to be compiled for."""
    return weight if isinstance(weight, jax.ShapeDtypeStruct) else jax.device_put(weight)  # type: ignore[return-value]
