"""Recurrent layers in NumPy, token by token: the reference for :mod:`model.delta_rule` and what is around it.

Nothing is computed in chunks here, so that an error in how chunks follow one another shows. Shapes: T tokens, H heads
of values, Dk and Dv numbers of a head of keys and of values, C channels of the convolution.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model.architecture.decoder import RecurrentLayer
from model.architecture.recurrence import Recurrence
from model.checks.numpy_decoder import Floats, after_mixing, entering, linear, logistic, normed, on_host, silu


class ReferenceInputs(NamedTuple):
    """See :class:`model.architecture.delta_net.RecurrentInputs`: [T, C], [T, H] and [T, H]."""

    mixed: Floats
    decay: Floats
    rate: Floats


class ReferenceState(NamedTuple):
    """What a layer keeps of a sequence."""

    inputs: Floats  # of the convolution: those of the last tokens, [inputs - 1, C]
    memory: Floats  # [H, Dk, Dv]

    @classmethod
    def empty(cls, sizes: Recurrence) -> ReferenceState:
        """Return what is kept of no tokens."""
        memory = np.zeros((sizes.value_heads, sizes.key_dim, sizes.value_dim), np.float32)
        return cls(np.zeros((sizes.inputs - 1, sizes.channels), np.float32), memory)


def inputs(layer: RecurrentLayer, hidden: Floats) -> ReferenceInputs:
    """Return what the recurrence takes of hidden states [T, width]."""
    mixer, rows = layer.linear_attn, entering(layer, hidden)
    bias, rate = (on_host(part[...]).astype(np.float32) for part in (mixer.dt_bias, mixer.A_log))
    decay = -np.exp(rate) * np.logaddexp(np.float32(0), linear(rows, mixer.in_proj_a) + bias)
    return ReferenceInputs(linear(rows, mixer.in_proj_qkv), decay, logistic(linear(rows, mixer.in_proj_b)))


def recur(layer: RecurrentLayer, given: ReferenceInputs, state: ReferenceState) -> tuple[Floats, ReferenceState]:
    """Return what is read at each token, [T, H, Dv], behind what the state keeps, and what is kept behind them."""
    mixer, sizes = layer.linear_attn, layer.linear_attn.sizes
    taps = on_host(mixer.conv1d.weight[...])[:, 0].astype(np.float32)
    seen = np.concatenate([state.inputs, given.mixed])
    memory, group = state.memory.copy(), sizes.value_heads // sizes.key_heads
    out = np.zeros((len(given.mixed), sizes.value_heads, sizes.value_dim), np.float32)
    for token in range(len(out)):
        convolved = silu(np.einsum("ic,ci->c", seen[token : token + sizes.inputs], taps))
        query, key, value = np.split(convolved, [sizes.key_heads * sizes.key_dim, 2 * sizes.key_heads * sizes.key_dim])
        query, key = (
            np.repeat(_unit(part.reshape(sizes.key_heads, sizes.key_dim)), group, axis=0) for part in (query, key)
        )
        memory *= np.exp(given.decay[token])[:, None, None]
        told = np.einsum("hd,hde->he", key, memory)
        change = given.rate[token][:, None] * (value.reshape(sizes.value_heads, sizes.value_dim) - told)
        memory += key[:, :, None] * change[:, None]
        out[token] = np.einsum("hd,hde->he", query, memory) / np.float32(np.sqrt(sizes.key_dim))
    return out, ReferenceState(seen[len(seen) - sizes.inputs + 1 :], memory)


def output_mlp(layer: RecurrentLayer, hidden: Floats, out: Floats) -> Floats:
    """Return the hidden states after the layer, [T, width]; out: of the recurrence, [T, H, Dv]."""
    mixer = layer.linear_attn
    gate = silu(linear(entering(layer, hidden), mixer.in_proj_z)).reshape(out.shape)
    return after_mixing(layer, hidden, linear((normed(out, mixer.norm) * gate).reshape(len(out), -1), mixer.out_proj))


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.sqrt(np.sum(vectors * vectors, axis=-1, keepdims=True) + np.float32(1e-6))
    return found
