"""The decoder once more, in NumPy and op by op: what compiled programs are held against
(:mod:`model.checks.known_answer`).

As in :mod:`model.decoder`, sums are float32 and what enters a product is rounded to the weights' dtype first. Nothing
is shared with it but the modules that hold the weights, and the configuration. Weights are read where they are served,
one kernel at a time, so no more than one is ever held in float32.

Shapes: T tokens, Q queries and S keys of H query heads and K key heads, D of a head, V of the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jax import Array
from jax.typing import DTypeLike

from model.config import DecoderConfig
from model.decoder import Layer, Linear, Norm
from model.programs import Programs
from scoring.layout import TokenIds

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

COLUMNS = 4_000
"""Of a head's kernel that are held in float32 at a time: 16 MB at a width of 1,024."""


ONE_THREAD = 2**19 - 1
"""Multiplications of a product that OpenBLAS does in the thread that asks. Larger ones it shares with threads of its
own, and waits for them: beside a compiler on two cores 30 ms for a product of 0.1 ms (measured).
"""


class Turned(NamedTuple):
    """Cosines and sines of positions' rotary angles: [T, D / 2]."""

    cos: Floats
    sin: Floats


class Seen(NamedTuple):
    """What queries saw: [Q, H, D], and the log-sum-exp of their scores, [Q, H]. Zero and minus infinity for nothing."""

    out: Floats
    log_sum_exp: Floats


def on_host(array: Array) -> npt.NDArray[np.generic]:
    """An array of the device, on a CPU without a copy."""
    # A second handle to it: jax keeps what is read of an array as long as the array, and weights live for ever.
    return np.asarray(array.addressable_data(0))


def rounded(values: Floats, dtype: DTypeLike) -> Floats:
    """Float32 that another dtype can hold."""
    return values.astype(dtype).astype(np.float32)


def multiply(one: Floats, other: Floats) -> Floats:
    """[m, k] x [k, n], some columns at a time."""
    out = np.empty((len(one), other.shape[1]), np.float32)
    columns = max(1, ONE_THREAD // max(1, one.size))
    for first in range(0, other.shape[1], columns):
        np.matmul(one, other[:, first : first + columns], out=out[:, first : first + columns])
    return out


def embed(programs: Programs, tokens: TokenIds) -> Floats:
    """[T, width]."""
    (weight,) = programs.embedding
    vectors = on_host(weight)[:, tokens].T if programs.config.tied else on_host(weight)[tokens]
    return vectors.astype(np.float32)


def rotation(positions: TokenIds, config: DecoderConfig) -> Turned:
    """The rotary angles of int32 positions [T]."""
    frequencies = config.rope.frequencies(config.head_dim).astype(np.float32)
    angles = positions[:, None].astype(np.float32) * frequencies
    magnitude = np.float32(config.rope.magnitude)
    return Turned(magnitude * np.cos(angles), magnitude * np.sin(angles))


def queries(layer: Layer, hidden: Floats, turned: Turned) -> Floats:
    """[Q, H, D] of positions [Q, width]."""
    attention = layer.self_attn
    found = linear(normed(hidden, layer.input_layernorm), attention.q_proj)
    heads = found.reshape(len(hidden), -1, attention.head_dim)
    return _rotated(heads if attention.q_norm is None else normed(heads, attention.q_norm), turned)


def key_values(layer: Layer, hidden: Floats, turned: Turned) -> tuple[Floats, Floats]:
    """Keys and values, [S, K, D] each, of positions [S, width]."""
    attention, inside = layer.self_attn, normed(hidden, layer.input_layernorm)
    keys, values = (
        linear(inside, projection).reshape(len(hidden), -1, attention.head_dim)
        for projection in (attention.k_proj, attention.v_proj)
    )
    return _rotated(keys if attention.k_norm is None else normed(keys, attention.k_norm), turned), values


def attend(queries: Floats, keys: Floats, values: Floats, visible: Mask, dtype: DTypeLike) -> Seen:
    """Every query head over the key head of its group; visible: [Q, S]; dtype: of the weights."""
    queries, keys, values = (rounded(part, dtype) for part in (queries, keys, values))
    group = queries.shape[1] // keys.shape[1]
    out = np.zeros(queries.shape, np.float32)
    log_sum_exp = np.full(queries.shape[:2], -np.inf, np.float32)
    sighted = visible.any(axis=1)
    for head in range(queries.shape[1]):
        scores = multiply(queries[sighted, head], keys[:, head // group].T) / np.float32(np.sqrt(queries.shape[-1]))
        scores = np.where(visible[sighted], scores, np.float32(-np.inf))
        peak = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - peak)
        total = weights.sum(axis=1, keepdims=True)
        out[sighted, head] = multiply(rounded(weights, dtype), values[:, head // group]) / total
        log_sum_exp[sighted, head] = (peak + np.log(total))[:, 0]
    return Seen(out, log_sum_exp)


def merge(one: Seen, other: Seen) -> Floats:
    """What queries saw of two disjoint sets of keys, of which the other is never empty: [Q, H, D]."""
    share = _logistic(one.log_sum_exp - other.log_sum_exp)[..., None]
    return one.out * share + other.out * (1 - share)


def leave(layer: Layer, hidden: Floats, attended: Floats) -> Floats:
    """The positions after the layer, [Q, width]; attended: what their queries saw, [Q, H, D]."""
    hidden = hidden + linear(attended.reshape(len(hidden), -1), layer.self_attn.o_proj)
    inside = normed(hidden, layer.post_attention_layernorm)
    gate = linear(inside, layer.mlp.gate_proj)
    return hidden + linear(gate * _logistic(gate) * linear(inside, layer.mlp.up_proj), layer.mlp.down_proj)


def final_states(programs: Programs, tokens: TokenIds, positions: TokenIds, visible: Mask) -> Floats:
    """Hidden states behind the last layer, [T, width], of tokens each of which sees some of them: [T, T]."""
    dtype, turned = programs.head[1].dtype, rotation(positions, programs.config)
    hidden = embed(programs, tokens)
    for number in range(programs.config.layers):
        layer = programs.layer(number)
        seen = attend(queries(layer, hidden, turned), *key_values(layer, hidden, turned), visible, dtype)
        hidden = leave(layer, hidden, seen.out)
    return hidden


def final_normed(programs: Programs, hidden: Floats) -> Floats:
    """Final states as they enter the head, [T, width]."""
    return _normed(hidden, programs.head[0], programs.config.norm_epsilon)


def label_logits(programs: Programs, hidden: Floats, labels: TokenIds) -> Floats:
    """Logits of some token ids, [T, labels], of final states [T, width]."""
    kernel = programs.head[1]
    entering = rounded(final_normed(programs, hidden), kernel.dtype)
    return multiply(entering, on_host(kernel)[:, labels].astype(np.float32))


def log_sum_exp(programs: Programs, hidden: Floats) -> Floats:
    """Of the logits of the whole vocabulary, [T, 1], for final states [T, width]."""
    kernel = on_host(programs.head[1])
    entering = rounded(final_normed(programs, hidden), kernel.dtype)
    peak, total = np.full((len(hidden), 1), -np.inf, np.float32), np.zeros((len(hidden), 1), np.float32)
    for first in range(0, kernel.shape[1], COLUMNS):
        logits = multiply(entering, kernel[:, first : first + COLUMNS].astype(np.float32))
        higher = np.maximum(peak, logits.max(axis=1, keepdims=True))
        total = total * np.exp(peak - higher) + np.exp(logits - higher).sum(axis=1, keepdims=True)
        peak = higher
    return peak + np.log(total)


def normed(values: Floats, norm: Norm) -> Floats:
    """The root-mean-square norm over the last axis."""
    return _normed(values, norm.weight[...], norm.epsilon)


def linear(rows: Floats, projection: Linear) -> Floats:
    """[T, in] to [T, out]."""
    kernel = projection.weight[...]
    out = multiply(rounded(rows, kernel.dtype), on_host(kernel).astype(np.float32))
    return out if projection.bias is None else out + on_host(projection.bias[...]).astype(np.float32)


def _normed(values: Floats, weight: Array, epsilon: float) -> Floats:
    scale = np.sqrt(np.mean(values * values, axis=-1, keepdims=True) + np.float32(epsilon))
    out: Floats = values / scale * on_host(weight).astype(np.float32)
    return out


def _logistic(values: Floats) -> Floats:
    """By the hyperbolic tangent, which overflows nowhere."""
    found: Floats = np.multiply(np.float32(0.5), 1 + np.tanh(values / 2))
    return found


def _rotated(heads: Floats, turned: Turned) -> Floats:
    """Each pair (d, d + D / 2) of [T, heads, D], turned by its position's angle."""
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    cos, sin = turned.cos[:, None], turned.sin[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
