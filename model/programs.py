"""The programs that run on the device, as functions of flat arguments: what is compiled ahead of time.

Weights are arguments and never constants of a program, which would be copied and folded into it. Calling an executable
on a flat tuple of arrays costs a tenth of what calling it on a tree of modules costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from model.attention import Attention, PrefixBlocks
from model.attention_dense import DenseAttention
from model.decoder import Body as DecoderBody
from model.decoder import Decoder
from model.product import as_bits, project
from scoring.layout import Head

Program = Callable[..., Array | tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Body:
    """The decoder below its head. Each program takes ``*weights`` first, all positionally, and is pure.

    rows, prefill, packed: see the methods of :class:`model.decoder.Body` of these names; a prefix is passed as the
    pool's keys and values and a table of its blocks.
    """

    weights: tuple[Array, ...]
    rows: Program
    prefill: Program
    packed: Program
    packed_dense: Program


def body(decoder: Decoder, attention: Attention) -> Body:
    """Take a decoder apart into functions and their flat arguments."""
    graph, state = nnx.split(decoder.model)
    leaves, tree = jax.tree_util.tree_flatten_with_path(state)
    count = len(leaves)

    def assembled(weights: Sequence[Array]) -> DecoderBody:
        model: DecoderBody = nnx.merge(graph, jax.tree.unflatten(tree, weights))
        return model

    def rows(*arguments: Array) -> Array:
        keys, values, table, tokens, lengths, ends = arguments[count:]
        prefix = PrefixBlocks(keys, values, table, 0)
        return assembled(arguments[:count]).rows(tokens, lengths, ends, prefix, attention)

    def prefill(*arguments: Array) -> tuple[Array, ...]:
        keys, values, table, tokens, length, start = arguments[count:]
        prefix = PrefixBlocks(keys, values, table, 0)
        hidden, *kept = assembled(arguments[:count]).prefill(tokens, length, start, prefix, attention)
        # As the pool holds them, which keeps bf16 as integers.
        return hidden, *(_pool_dtype(part) for part in kept)

    def packed(*arguments: Array) -> Array:
        tokens, positions, ranges, read = arguments[count:]
        return assembled(arguments[:count]).packed(tokens, positions, ranges, read, attention)

    def packed_dense(*arguments: Array) -> Array:
        tokens, positions, ranges, read = arguments[count:]
        return assembled(arguments[:count]).packed(tokens, positions, ranges, read, DenseAttention())

    weights = tuple(as_bits(leaf) if path[0].key == "layers" else leaf for path, leaf in leaves)
    return Body(weights, rows, prefill, packed, packed_dense)


def store(pool_keys: Array, pool_values: Array, keys: Array, values: Array, block: Array) -> tuple[Array, Array]:
    """Write the first keys and values of a block into a pool, whose memory is taken over; the rest becomes zero.

    What an earlier prefix left there is never seen, but a weight of zero times its infinity would be.
    Pool: see :class:`model.attention.PrefixBlocks`; keys: [layers, K, D, C]; values: [layers, K, C, D]; block: int32.
    """
    start = (block, 0, 0, 0, 0)
    rest = pool_keys.shape[-1] - keys.shape[-1]
    keys = jnp.pad(keys, ((0, 0), (0, 0), (0, 0), (0, rest)))
    values = jnp.pad(values, ((0, 0), (0, 0), (0, rest), (0, 0)))
    return (
        lax.dynamic_update_slice(pool_keys, keys[None], start),
        lax.dynamic_update_slice(pool_values, values[None], start),
    )


def logprobs_head(kernel: Array, hidden: Array, labels: Array) -> tuple[Array, Array]:
    """Label logits and log-probabilities over the full logit width.

    kernel: [width, vocabulary]; hidden: float32 [R, width]; labels: int32 [M]. Returns two float32 [R, M].
    """
    logits = project(hidden, kernel)
    label_logits = jnp.take(logits, labels, axis=1)
    return label_logits, label_logits - jax.nn.logsumexp(logits, axis=1, keepdims=True)


def logits_head(kernel: Array, hidden: Array, labels: Array) -> tuple[Array]:
    """Label logits alone: reads the labels' columns of the kernel and no others. Shapes as for the other head."""
    return (project(hidden, jnp.take(kernel, labels, axis=1)),)


HEADS: dict[Head, Program] = {Head.LOGPROBS: logprobs_head, Head.LOGITS: logits_head}


def _pool_dtype(array: Array) -> Array:
    return lax.bitcast_convert_type(array, jnp.uint16) if array.dtype == jnp.bfloat16 else array
