"""Recurrent layers in NumPy, token by token: the reference for :mod:`model.layers.delta_rule` and what is around it.

Nothing is computed in chunks here, so that an error in how chunks follow one another shows. Shapes: T tokens, H heads
of values, Dk and Dv numbers of a head of keys and of values, C channels of the convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from model.architecture.decoder import RecurrentLayer
from model.checks.numpy_decoder import Floats, after_mixing, entering, linear, logistic, normed, on_host, silu


class ReferenceInputs(NamedTuple):
    """See :class:`model.architecture.delta_net.RecurrentInputs`: [T, C], [T, H] and [T, H]."""

    mixed: Floats  # before the convolution, or behind it
    decay: Floats
    rate: Floats


class ReferenceHeads(NamedTuple):
    """Queries and keys, [T, heads of keys, Dk] each, values, [T, H, Dv], decay and rate, [T, H] each."""

    queries: Floats
    keys: Floats
    values: Floats
    decay: Floats
    rate: Floats


def inputs(layer: RecurrentLayer, hidden: Floats) -> ReferenceInputs:
    """Return what the layer takes of hidden states [T, width]."""
    mixer, rows = layer.linear_attn, entering(layer, hidden)
    bias, rate = (on_host(part[...]).astype(np.float32) for part in (mixer.dt_bias, mixer.A_log))
    decay = -np.exp(rate) * np.logaddexp(np.float32(0), linear(rows, mixer.in_proj_a) + bias)
    return ReferenceInputs(linear(rows, mixer.in_proj_qkv), decay, logistic(linear(rows, mixer.in_proj_b)))


def convolved(layer: RecurrentLayer, windows: Floats) -> Floats:
    """Return queries, keys and values of tokens, [T, C]; windows: the inputs of each token, [T, inputs, C]."""
    taps = on_host(layer.linear_attn.conv1d.weight[...])[:, 0].astype(np.float32)
    return silu(np.einsum("tic,ci->tc", windows, taps))


def heads(layer: RecurrentLayer, given: ReferenceInputs) -> ReferenceHeads:
    """Return what the recurrence takes of tokens behind the convolution."""
    sizes = layer.linear_attn.sizes
    keys = sizes.key_heads * sizes.key_dim
    queries, keyed, values = np.split(given.mixed, [keys, 2 * keys], axis=1)
    shape = len(values), sizes.key_heads, sizes.key_dim
    return ReferenceHeads(
        _unit(queries.reshape(shape)) / np.float32(np.sqrt(sizes.key_dim)),
        _unit(keyed.reshape(shape)),
        values.reshape(len(values), sizes.value_heads, sizes.value_dim),
        given.decay,
        given.rate,
    )


def recur(given: ReferenceHeads, memory: Floats, before: Sequence[int] | None = None) -> tuple[Floats, Floats]:
    """Return what is read at each token, [T, H, Dv], and the state behind the last one, [H, Dk, Dv].

    memory: the state behind which the tokens stand. before: the place of the token that stands before each; -1: none
    does. Without it, the tokens are one sequence.
    """
    group = given.values.shape[1] // given.keys.shape[1]
    kept, out = {-1: memory}, np.zeros_like(given.values)
    for token, place in enumerate(range(-1, len(out) - 1) if before is None else before):
        query, key = (np.repeat(part[token], group, axis=0) for part in (given.queries, given.keys))
        state = (kept[place] if before is not None else kept.pop(place)) * np.exp(given.decay[token])[:, None, None]
        change = given.rate[token][:, None] * (given.values[token] - np.einsum("hd,hde->he", key, state))
        state += key[:, :, None] * change[:, None]
        out[token] = np.einsum("hd,hde->he", query, state)
        kept[token] = state
    return out, kept[len(out) - 1]


def through(layer: RecurrentLayer, hidden: Floats, before: Sequence[int]) -> Floats:
    """Return the hidden states after a layer, [T, width]; before: see :func:`recur`."""
    sizes, given = layer.linear_attn.sizes, inputs(layer, hidden)
    places = [np.arange(len(hidden))]
    for _ in range(sizes.inputs - 1):
        places.insert(0, np.where(places[0] >= 0, np.array(before)[places[0]], -1))
    windows = np.stack([np.where(one[:, None] >= 0, given.mixed[one], np.float32(0)) for one in places], axis=1)
    nothing = np.zeros((sizes.value_heads, sizes.key_dim, sizes.value_dim), np.float32)
    out, _ = recur(heads(layer, given._replace(mixed=convolved(layer, windows))), nothing, before)
    return output_mlp(layer, hidden, out)


def output_mlp(layer: RecurrentLayer, hidden: Floats, out: Floats) -> Floats:
    """Return the hidden states after the layer, [T, width]; out: of the recurrence, [T, H, Dv]."""
    return after_mixing(layer, hidden, added(layer, hidden, out))


def added(layer: RecurrentLayer, hidden: Floats, out: Floats) -> Floats:
    """Return what the recurrence adds to hidden states [T, width]."""
    mixer = layer.linear_attn
    gate = silu(linear(entering(layer, hidden), mixer.in_proj_z)).reshape(out.shape)
    return linear((normed(out, mixer.norm) * gate).reshape(len(out), -1), mixer.out_proj)


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.sqrt(np.sum(vectors * vectors, axis=-1, keepdims=True) + np.float32(1e-6))
    return found
