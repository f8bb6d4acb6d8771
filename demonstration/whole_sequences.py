"""A decoder over whole sequences, from tokens to logits, with gradients: for training, and to compare with other code.

The service computes sequences in steps, whose attention has no gradients.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from model.architecture.decoder import Body, Decoder, Layer, RecurrentLayer, of_kind, rotary_embeddings
from model.architecture.delta_net import GatedDeltaNet, RecurrentInputs
from model.attention.contract import causal
from model.attention.tiles import TiledAttention
from model.layers.delta_rule import CHUNK, delta_rule
from model.layers.linear import capped, project


def logits(decoder: Decoder, tokens: Array) -> Array:
    """Return logits of all positions under causal attention: int32 [B, L] to float32 [B, L, V]."""
    hidden, cap = hidden_states(decoder.model, tokens), decoder.config.caps.logits
    if decoder.head is not None:
        return capped(decoder.head(hidden), cap)
    return capped(project(hidden, decoder.head_kernel(), transposed=decoder.head_as_rows), cap)


def hidden_states(body: Body, tokens: Array) -> Array:
    """Return final hidden states of all positions: int32 [B, L] to float32 [B, L, width]."""
    config, length = body.config, tokens.shape[1]
    attention = TiledAttention(differentiable=True, cap=config.caps.scores)
    of_kinds = rotary_embeddings(jnp.arange(length, dtype=jnp.int32)[None], config)
    graph, stacked = nnx.split(body.layers)

    def through(hidden: Array, one: tuple[nnx.State[Any, Any], Array]) -> tuple[Array, None]:
        layer: Layer = nnx.merge(graph, one[0])
        rotary = of_kind(of_kinds, one[1])
        reach = None if config.window is None else jnp.where(one[1], config.reach, length)
        queries, key_values = layer.attention_inputs(hidden, rotary)
        found = attention.attend(queries, *key_values, causal(length, reach))
        return layer.output_mlp(hidden, layer.self_attn.attended(found)), None

    hidden = body.embed_tokens(tokens)
    if body.recurrent_layers is None:
        hidden, _ = lax.scan(through, hidden, (stacked, jnp.array(config.windowed)))
        return body.norm(hidden)
    of_recurrent, recurrent = nnx.split(body.recurrent_layers)
    for place, is_recurrent in enumerate(config.recurrent):
        number = config.recurrent[:place].count(is_recurrent)
        if is_recurrent:
            one: RecurrentLayer = nnx.merge(of_recurrent, _of_stack(recurrent, number))
            hidden = one.output_mlp(hidden, _recurred(one.linear_attn, one.inputs(hidden)))
        else:
            hidden, _ = through(hidden, (_of_stack(stacked, number), jnp.array(config.windowed[place])))
    return body.norm(hidden)


def _of_stack(stacked: nnx.State[Any, Any], number: int) -> nnx.State[Any, Any]:
    """Return the weights of one layer of a stack."""
    found: nnx.State[Any, Any] = jax.tree.map(lambda leaf: leaf[number], stacked)
    return found


def _recurred(mixer: GatedDeltaNet, inputs: RecurrentInputs) -> Array:
    """Return what is read at each token of whole sequences, [B, L, Hv, Dv] of inputs [B, L, ...]."""
    sizes, length = mixer.sizes, inputs.mixed.shape[1]
    missing = -length % CHUNK
    mixed, *gates = (
        jnp.pad(part, ((0, 0), (first, missing), (0, 0)))
        for part, first in zip(inputs, (sizes.inputs - 1, 0, 0), strict=True)
    )
    windows = [mixed[:, first : first + length + missing] for first in range(sizes.inputs)]
    state = jnp.zeros((sizes.value_heads, sizes.key_dim, sizes.value_dim), jnp.float32)
    return delta_rule(mixer.heads(mixer.convolved(windows), *gates), state)[0][:, :length]
