"""The programs that run on the device, as functions of flat arguments: what is compiled ahead of time.

A layer is four of them: queries, keys and values of a step's tokens; what the tokens see before their own item; what
they see of it; and what becomes of them. Weights are arguments and never constants of a program, which would be copied
and folded into it, and every layer runs the same programs over its own. Calling an executable on a flat tuple of arrays
costs a tenth of what calling it on a tree of modules costs.

Shapes: T tokens of a step, n of which are read; I = ``Buckets.interface(T)``, to which queries, keys, values and what
they saw are padded between programs; R items of at most L tokens; *layer* is a layer's weights. A program is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax

from model.attention.contract import Attended, Attention, PrefixBlocks, causal, merge
from model.attention.dense import DenseAttention
from model.buckets import Buckets
from model.decoder import Decoder, Embedding, Layer, Norm, Rotation, rotation
from model.linear import as_bits, project
from scoring.layout import Head

Program = Callable[..., tuple[Array, ...]]


class Programs:
    """A decoder taken apart into programs and the weights that they run over.

    layers: one flat tuple of arrays a layer; embedding, head: flat tuples, too.
    """

    def __init__(self, decoder: Decoder, attention: Attention, buckets: Buckets) -> None:
        self.config = decoder.config
        self._attention = attention
        self._buckets = buckets
        graph, stacked = nnx.split(decoder.model.layers)
        self._layer: nnx.GraphDef[Layer] = graph
        leaves, self._layer_tree = jax.tree.flatten(stacked)
        per_leaf = [_unstacked(leaf) for leaf in leaves]
        self.layers: list[tuple[Array, ...]] = list(zip(*per_leaf, strict=True))
        embedding, self._embedding_tree = jax.tree.flatten(nnx.split(decoder.model.embed_tokens)[1])
        self._embedding: nnx.GraphDef[Embedding] = nnx.graphdef(decoder.model.embed_tokens)
        self.embedding: tuple[Array, ...] = tuple(embedding)
        self._norm: nnx.GraphDef[Norm] = nnx.graphdef(decoder.model.norm)
        self.head: tuple[Array, Array] = (decoder.model.norm.weight[...], decoder.head_kernel())

    def pool(self, blocks: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """The keys and values of a layer's pool of so many blocks: see
        :class:`model.attention.contract.PrefixBlocks`."""
        config, size, dtype = self.config, self._buckets.step, self.head[1].dtype
        # Or the CPU compiler would convert a whole pool to float32 to take a slice of it.
        dtype = jnp.uint16 if dtype == jnp.bfloat16 else dtype
        shapes = (config.head_dim, size), (size, config.head_dim)
        keys, values = (jax.ShapeDtypeStruct((blocks, config.kv_heads, *shape), dtype) for shape in shapes)  # type: ignore[no-untyped-call]
        return keys, values

    def layer(self, number: int) -> Layer:
        """One layer, as a module over the arrays that are served."""
        return self._of_layer(self.layers[number])

    def enter(self, *arguments: Array) -> tuple[Array, ...]:
        """(*embedding, tokens, positions), int32 [T] each -> hidden, float32 [T, width], and the tokens' rotation."""
        *weights, tokens, positions = arguments
        embedding: Embedding = nnx.merge(self._embedding, jax.tree.unflatten(self._embedding_tree, weights))
        return embedding(tokens), *rotation(positions, self.config)

    def project(self, *arguments: Array) -> tuple[Array, ...]:
        """(*layer, hidden, cos, sin) -> queries [I, H, D], keys and values [I, K, D]."""
        *weights, hidden, cos, sin = arguments
        layer, turned = self._of_layer(weights), Rotation(cos, sin)
        return self._wide(layer.queries(hidden, turned), *layer.key_values(hidden, turned))

    def project_read(self, *arguments: Array) -> tuple[Array, ...]:
        """(*layer, hidden, cos, sin, places), int32 [n] -> the same with queries of these places alone, and the hidden
        states of these places, float32 [n, width].
        """
        *weights, hidden, cos, sin, places = arguments
        layer, turned = self._of_layer(weights), Rotation(cos, sin)
        read = hidden[places]
        queries = layer.queries(read, Rotation(cos[places], sin[places]))
        return *self._wide(queries, *layer.key_values(hidden, turned)), read

    def before(self, *arguments: Array) -> tuple[Array, ...]:
        """(queries, pool keys, pool values, table, ends), int32 [T]: how much of the prefix each token sees.

        -> out, float32 [I, H, D], and its log-sum-exp, float32 [I, H].
        """
        queries, keys, values, table, ends = arguments
        seen = self._attention.attend_prefix(queries[: len(ends)], PrefixBlocks(keys, values, table), ends)
        size = self._buckets.interface(len(ends)) - len(ends)
        log_sum_exp = jnp.pad(seen.log_sum_exp, ((0, size), (0, 0)), constant_values=-jnp.inf)
        return jnp.pad(seen.out, ((0, size), (0, 0), (0, 0))), log_sum_exp

    def own(self, span: int) -> Program:
        """(queries, keys, values, out, log-sum-exp, starts, slots) -> what every token has seen, float32 [I, H, D].

        starts: int32 [R], where in the step each item begins; slots: int32 [I], item x ``span`` + place in it, for
        each token of these items. Of others, at -1, it is what they had seen: items of another span, whose turn comes
        before or after.
        """

        def program(
            queries: Array, keys: Array, values: Array, out: Array, log_sum_exp: Array, starts: Array, slots: Array
        ) -> tuple[Array]:
            places = _places(starts, span, len(keys))
            apart = self._attention.attend(queries[places], keys[places], values[places], causal(span))
            flat = (part.reshape(-1, *part.shape[2:])[jnp.maximum(slots, 0)] for part in apart)
            seen = merge(Attended(out, log_sum_exp), Attended(*flat)).out
            return (jnp.where((slots >= 0)[:, None, None], seen, out),)

        return program

    def own_last(self, span: int) -> Program:
        """(queries, keys, values, out, log-sum-exp, starts, lengths, reads) -> what each item's last token has seen.

        lengths, reads: int32 [R]. The query of item r is at ``reads[r]``, and so is what it has seen in the result,
        float32 [I, H, D]. Elsewhere that is what it was; reads of I are nobody's.
        """

        def program(
            queries: Array,
            keys: Array,
            values: Array,
            out: Array,
            log_sum_exp: Array,
            starts: Array,
            lengths: Array,
            reads: Array,
        ) -> tuple[Array]:
            places = _places(starts, span, len(keys))
            ranges = jnp.stack([jnp.zeros_like(lengths), lengths], axis=-1)[:, None, None]
            known = jnp.minimum(reads, len(queries) - 1)
            apart = self._attention.attend(queries[known][:, None], keys[places], values[places], ranges)
            seen = merge(Attended(out[known], log_sum_exp[known]), Attended(*(part[:, 0] for part in apart)))
            return (out.at[reads].set(seen.out, mode="drop"),)

        return program

    def packed(self, *, dense: bool) -> Program:
        """(queries, keys, values, ranges) -> what each query has seen, float32 [I, H, D].

        ranges: int32 [T or n, 2, 2], what each query sees: see :meth:`model.attention.contract.Attention.attend`.
        """
        attention = DenseAttention() if dense else self._attention

        def program(queries: Array, keys: Array, values: Array, ranges: Array) -> tuple[Array]:
            seen = attention.attend(queries[None, : len(ranges)], keys[None], values[None], ranges[None]).out[0]
            return (jnp.pad(seen, ((0, len(queries) - len(ranges)), (0, 0), (0, 0))),)

        return program

    def leave(self, *arguments: Array) -> tuple[Array]:
        """(*layer, hidden, what the tokens have seen) -> hidden, float32 [T, width]."""
        *weights, hidden, attended = arguments
        return (self._of_layer(weights).leave(hidden, attended[: len(hidden)]),)

    def store(
        self, pool_keys: Array, pool_values: Array, keys: Array, values: Array, block: Array
    ) -> tuple[Array, Array]:
        """Write a step's keys and values, [I, K, D], into a block of a pool, whose memory is taken over."""
        start = (block, 0, 0, 0)
        return (
            lax.dynamic_update_slice(pool_keys, as_bits(keys.transpose(1, 2, 0))[None], start),
            lax.dynamic_update_slice(pool_values, as_bits(values.transpose(1, 0, 2))[None], start),
        )

    def read(self, head: Head) -> Program:
        """(*head, hidden, labels), float32 [R, width] as layers leave it, int32 [M] -> float32 [R, M], once or twice:

        label logits, and log-probabilities over the full logit width where ``head`` asks for them. Logits alone read
        the labels' columns of the kernel and no others.
        """

        def program(weight: Array, kernel: Array, hidden: Array, labels: Array) -> tuple[Array, ...]:
            norm: Norm = nnx.merge(self._norm, nnx.State({"weight": nnx.Param(weight)}))
            if head is Head.LOGITS:
                return (project(norm(hidden), jnp.take(kernel, labels, axis=1)),)
            logits = project(norm(hidden), kernel)
            label_logits = jnp.take(logits, labels, axis=1)
            return label_logits, label_logits - jax.nn.logsumexp(logits, axis=1, keepdims=True)

        return program

    def _of_layer(self, weights: Sequence[Array]) -> Layer:
        layer: Layer = nnx.merge(self._layer, jax.tree.unflatten(self._layer_tree, weights))
        return layer

    def _wide(self, queries: Array, keys: Array, values: Array) -> tuple[Array, Array, Array]:
        def wide(array: Array) -> Array:
            missing = self._buckets.interface(len(array)) - len(array)
            return jnp.pad(array, ((0, missing), (0, 0), (0, 0))) if missing else array

        return wide(queries), wide(keys), wide(values)


def _places(starts: Array, span: int, size: int) -> Array:
    """The places of items' tokens in a step, int32 [R, span]; behind an item's end, those of whatever follows."""
    return jnp.minimum(starts[:, None] + jnp.arange(span, dtype=jnp.int32), size - 1)


def _unstacked(stacked: Array) -> list[Array]:
    """The layers of a stack. On a CPU they are views of its memory."""
    if jax.devices()[0].platform != "cpu":
        return list(stacked)
    host = np.asarray(stacked)
    return [jax.device_put(host[layer]) for layer in range(len(host))]
