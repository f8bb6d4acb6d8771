"""A second implementation of the decoder, in NumPy: the reference for compiled programs
(:mod:`model.checks.known_answer`).

As in :mod:`model.architecture.decoder`, sums are float32, and operands of products are rounded to the weights' dtype.
It shares only the modules that hold the weights, and the configuration. Served weights are read in place and converted
one kernel at a time, so at most one is held in float32.

Shapes: T tokens, Q queries and S keys of H query heads and K key heads, D of a head, V of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.typing import DTypeLike

from model.architecture.config import DecoderConfig
from model.architecture.decoder import Layer, MixingLayer, RecurrentLayer
from model.architecture.mixture import MixtureOfExperts
from model.architecture.mlp import MLP
from model.architecture.projections import Linear, Norm
from model.architecture.rope import Rope
from scoring.layout import TokenIds

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

COLUMNS = 4_000  # columns of the head's kernel that are held in float32 at a time: 16 MB at a width of 1,024
ONE_THREAD = 2**19 - 1
"""Multiplications of the largest product that OpenBLAS computes in the calling thread. For larger ones it waits for
threads of its own: beside a compiler on two cores, 30 ms for a product of 0.1 ms (measured).
"""
FEW_COLUMNS = 4
"""Columns that are worth a product of their own. Products that are larger than so many allow gain more by threads."""


class RotaryAngles(NamedTuple):
    """Cosines and sines of the rotary angles of positions, [T, pairs]: of half a head's numbers, or of fewer."""

    cos: Floats
    sin: Floats


class ReferenceAttention(NamedTuple):
    """The result of attention: zero, and minus infinity, for queries that see no key."""

    out: Floats  # [Q, H, D]
    log_sum_exp: Floats  # of the scores, [Q, H]


class ServedDecoder(Protocol):
    """A decoder on a device."""

    @property
    def config(self) -> DecoderConfig:
        """Its configuration."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the weights."""

    @property
    def embedding(self) -> tuple[Array, ...]:
        """The weights of the embedding."""

    @property
    def embedding_as_rows(self) -> bool:
        """Whether it is [vocabulary, width]; otherwise [width, vocabulary]."""

    @property
    def head_as_rows(self) -> bool:
        """Whether the kernel of the head is [vocabulary, width]; otherwise [width, vocabulary]."""

    @property
    def head(self) -> tuple[Array, ...]:
        """The weight of the final norm, the kernel of the head, and its bias if it has one."""

    def layer(self, number: int) -> Layer:
        """Return one of the layers with attention."""

    def recurrent_layer(self, number: int) -> RecurrentLayer:
        """Return one of the recurrent layers."""


def on_host(array: Array, number: int | None = None) -> npt.NDArray[np.generic]:
    """Return an array of the device, on a CPU without a copy. It may be divided among several devices, or be NumPy's.

    number: of an array in a stack of them; None for the whole array.
    """
    if isinstance(array, np.ndarray):
        return array if number is None else array[number]
    if number is None and array.is_fully_replicated:
        # Through a second handle, because jax keeps the host copy of an array as long as the array, and weights stay.
        return np.asarray(array.addressable_data(0))
    found = np.empty(array.shape if number is None else array.shape[1:], array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            of_shard = shard.data.addressable_data(0)
            place = shard.index if number is None else shard.index[1:]
            found[place] = np.asarray(of_shard if number is None else of_shard[number])
    return found


def rounded(values: Floats, dtype: DTypeLike) -> Floats:
    """Return float32 values rounded to those of another dtype."""
    return values.astype(dtype).astype(np.float32)


def multiply(one: Floats, other: Floats) -> Floats:
    """Return the product [m, k] x [k, n], computed some columns at a time unless it is large."""
    if one.size > ONE_THREAD // FEW_COLUMNS:
        return one @ other
    out = np.empty((len(one), other.shape[1]), np.float32)
    columns = max(1, ONE_THREAD // max(1, one.size))
    for first in range(0, other.shape[1], columns):
        np.matmul(one, other[:, first : first + columns], out=out[:, first : first + columns])
    return out


def embed(decoder: ServedDecoder, tokens: TokenIds) -> Floats:
    """Return the embedding of tokens [T]: [T, width]."""
    (weight,) = decoder.embedding
    vectors = on_host(weight)[tokens] if decoder.embedding_as_rows else on_host(weight)[:, tokens].T
    return vectors.astype(np.float32) * np.float32(decoder.config.multipliers.embedding_multiplier)


def rotary_angles(positions: TokenIds, rope: Rope, head_dim: int) -> RotaryAngles:
    """Return the rotary angles of int32 positions [T]."""
    angles = positions[:, None].astype(np.float32) * rope.frequencies(head_dim).astype(np.float32)
    magnitude = np.float32(rope.magnitude)
    return RotaryAngles(magnitude * np.cos(angles), magnitude * np.sin(angles))


def queries(layer: Layer, hidden: Floats, rotary: RotaryAngles) -> Floats:
    """Return queries [Q, H, D] of hidden states [Q, width]."""
    attention = layer.self_attn
    heads = _heads(layer, linear(entering(layer, hidden), attention.q_proj), attention.q_norm)
    return _rotated(heads * np.float32(attention.query_scale), rotary)


def key_values(layer: Layer, hidden: Floats, rotary: RotaryAngles) -> tuple[Floats, Floats]:
    """Return keys and values, [S, K, D] each, of hidden states [S, width]."""
    attention, rows = layer.self_attn, entering(layer, hidden)
    keys = _heads(layer, linear(rows, attention.k_proj), attention.k_norm)
    return _rotated(keys, rotary), _heads(layer, linear(rows, attention.v_proj), None)


def _heads(layer: Layer, projected: Floats, norm: Norm | None) -> Floats:
    """Return heads [T, heads, D] of what was projected, [T, heads * D], normed where there is a norm."""
    attention, shape = layer.self_attn, (len(projected), -1, layer.self_attn.head_dim)
    if norm is None:
        return projected.reshape(shape)
    if attention.norms_all_heads:
        return normed(projected, norm).reshape(shape)
    return normed(projected.reshape(shape), norm)


def attend(
    queries: Floats, keys: Floats, values: Floats, visible: Mask, dtype: DTypeLike, cap: float | None
) -> ReferenceAttention:
    """Return attention of every query head to the key head of its group.

    visible: [Q, S]; dtype: of the weights; cap: of scores.
    """
    queries, keys, values = (rounded(part, dtype) for part in (queries, keys, values))
    group = queries.shape[1] // keys.shape[1]
    out = np.zeros(queries.shape, np.float32)
    log_sum_exp = np.full(queries.shape[:2], -np.inf, np.float32)
    seeing = visible.any(axis=1)
    for head in range(queries.shape[1]):
        scores = multiply(queries[seeing, head], keys[:, head // group].T) / np.float32(np.sqrt(queries.shape[-1]))
        scores = np.where(visible[seeing], capped(scores, cap), np.float32(-np.inf))
        peak = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - peak)
        total = weights.sum(axis=1, keepdims=True)
        out[seeing, head] = multiply(rounded(weights, dtype), values[:, head // group]) / total
        log_sum_exp[seeing, head] = (peak + np.log(total))[:, 0]
    return ReferenceAttention(out, log_sum_exp)


def capped(values: Floats, cap: float | None) -> Floats:
    """Return values that a hyperbolic tangent keeps between a number and its negative; None: as they are."""
    return values if cap is None else np.float32(cap) * np.tanh(values / np.float32(cap))


def merge(one: ReferenceAttention, other: ReferenceAttention) -> ReferenceAttention:
    """Return attention over two disjoint sets of keys, of which ``other`` is never empty."""
    share = logistic(one.log_sum_exp - other.log_sum_exp)[..., None]
    log_sum_exp = np.logaddexp(one.log_sum_exp, other.log_sum_exp)
    return ReferenceAttention(one.out * share + other.out * (1 - share), log_sum_exp)


def output_mlp(layer: Layer, hidden: Floats, attended: ReferenceAttention) -> Floats:
    """Return the hidden states after the layer, [Q, width]."""
    return after_mixing(layer, hidden, added(layer, hidden, attended))


def added(layer: Layer, hidden: Floats, attended: ReferenceAttention) -> Floats:
    """Return what attention adds to hidden states [Q, width]."""
    attention, out = layer.self_attn, attended.out
    if attention.sinks is not None:
        out = out * logistic(attended.log_sum_exp - on_host(attention.sinks[...]).astype(np.float32))[..., None]
    flat = out.reshape(len(hidden), -1)
    if attention.output_gate_proj is not None:
        flat = flat * logistic(linear(entering(layer, hidden), attention.output_gate_proj))
    return linear(flat, attention.o_proj)


def entering(layer: MixingLayer, hidden: Floats) -> Floats:
    """Return what enters attention or recurrence, of hidden states [T, width]."""
    return _maybe_normed(hidden, layer.input_layernorm)


def after_mixing(layer: MixingLayer, hidden: Floats, added: Floats) -> Floats:
    """Return the hidden states after the layer, [T, width]; added: what attention or recurrence adds."""
    hidden, rows = _before_mlp(layer, hidden, added)
    out = _mixed(layer.mlp, rows) if isinstance(layer.mlp, MixtureOfExperts) else _gated(layer.mlp, rows)
    return hidden + np.float32(layer.residual_scale) * _maybe_normed(out, layer.post_feedforward_layernorm)


def _before_mlp(layer: MixingLayer, hidden: Floats, added: Floats) -> tuple[Floats, Floats]:
    """Return the hidden states between attention or recurrence and the MLP, and what enters the MLP."""
    hidden = hidden + np.float32(layer.residual_scale) * _maybe_normed(added, layer.norm_after_attention)
    return hidden, _maybe_normed(hidden, layer.norm_before_mlp)


def _gated(mlp: MLP, rows: Floats) -> Floats:
    gate = _ACTIVATIONS[mlp.activation](linear(rows, mlp.gate_proj))
    return linear(gate * linear(rows, mlp.up_proj), mlp.down_proj)


def _mixed(mlp: MixtureOfExperts, rows: Floats) -> Floats:
    """Return what a mixture gives for [T, width]: one expert after another, for the tokens that it is chosen for."""
    logits, experts = _router_logits(mlp, rows), mlp.experts
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    chosen = np.argsort(-weights, axis=1, kind="stable")[:, : mlp.mixture.chosen]
    weights = np.take_along_axis(weights, chosen, axis=1)
    if mlp.mixture.normalised:
        weights /= weights.sum(axis=1, keepdims=True)
    out = np.zeros_like(rows)
    for number in np.unique(chosen).tolist():
        tokens, ranks = np.nonzero(chosen == number)
        gate = _of_expert(rows[tokens], experts.gate_proj, number)
        up = _of_expert(rows[tokens], experts.up_proj, number)
        if experts.clamped is None:
            inner = _ACTIVATIONS[experts.activation](gate) * up
        else:
            gain, limit = experts.clamped
            gate = np.minimum(gate, np.float32(limit))
            inner = gate * logistic(gate * np.float32(gain)) * (np.clip(up, -limit, limit) + 1)
        out[tokens] += weights[tokens, ranks, None] * _of_expert(inner, experts.down_proj, number)
    if mlp.shared_expert is not None and mlp.shared_expert_gate is not None:
        out += logistic(linear(rows, mlp.shared_expert_gate)) * _gated(mlp.shared_expert, rows)
    return out


def _router_logits(mlp: MixtureOfExperts, rows: Floats) -> Floats:
    """Return the router's logits of what enters a mixture, [T, experts]. Nothing is rounded to the weights' dtype."""
    logits = multiply(rows, on_host(mlp.gate.weight[...]).astype(np.float32))
    return logits if mlp.gate.bias is None else logits + on_host(mlp.gate.bias[...]).astype(np.float32)


def _of_expert(rows: Floats, projection: Linear, number: int) -> Floats:
    """Return the projection of [T, in] to [T, out] by one expert."""

    def own(weights: Array) -> npt.NDArray[np.generic]:
        found: npt.NDArray[np.generic] = on_host(weights)[number]
        return found.view(jnp.bfloat16) if found.dtype == np.uint16 else found  # see Experts

    kernel = own(projection.weight[...])
    out = multiply(rounded(rows, kernel.dtype), kernel.astype(np.float32))
    return out if projection.bias is None else out + own(projection.bias[...]).astype(np.float32)


def clearest(layer: MixingLayer, hidden: Floats, added: Floats, count: int) -> npt.NDArray[np.intp]:
    """Return the numbers of the rows whose experts are chosen most clearly: the first ones, where there is no choice.

    added: what attention or recurrence adds to hidden states, [T, width]. Where the router's logits of the last expert
    that is chosen and of the next one are nearly the same, a rounding error decides, and there are two right results.
    """
    mlp = layer.mlp
    if not isinstance(mlp, MixtureOfExperts) or mlp.mixture.chosen == mlp.mixture.experts:
        return np.arange(count)
    ascending = np.sort(_router_logits(mlp, _before_mlp(layer, hidden, added)[1]), axis=1)
    last = mlp.mixture.experts - mlp.mixture.chosen
    return np.argsort(ascending[:, last - 1] - ascending[:, last], kind="stable")[:count]


def final_normed(decoder: ServedDecoder, hidden: Floats) -> Floats:
    """Return final states after the final norm, [T, width]."""
    scale = np.float32(1 / decoder.config.multipliers.logits_scaling)
    return scale * _normed(hidden, decoder.head[0], decoder.config.traits.norm_offset, decoder.config.norm_epsilon)


def label_logits(decoder: ServedDecoder, hidden: Floats, labels: TokenIds) -> Floats:
    """Return the logits of some token ids, [T, labels], for final states [T, width]."""
    kernel = _head_kernel(decoder)
    entering = rounded(final_normed(decoder, hidden), kernel.dtype)
    return _head_output(multiply(entering, kernel[:, labels].astype(np.float32)), decoder, labels)


class OverVocabulary(NamedTuple):
    """What is known of the logits of the whole vocabulary, for T final states."""

    log_sum_exp: Floats  # [T, 1]
    peak: Floats  # the highest logit, [T, 1]
    highest: TokenIds  # the most probable token, int32 [T]
    lead: Floats  # how much higher its logit is than that of any other token, [T]


def over_vocabulary(decoder: ServedDecoder, hidden: Floats) -> OverVocabulary:
    """Compute the logits of the whole vocabulary, some columns at a time, for final states [T, width]."""
    kernel = _head_kernel(decoder)
    entering = rounded(final_normed(decoder, hidden), kernel.dtype)
    peak, total = np.full((len(hidden), 1), -np.inf, np.float32), np.zeros((len(hidden), 1), np.float32)
    highest, second = np.zeros(len(hidden), np.int32), np.full(len(hidden), -np.inf, np.float32)
    for first in range(0, kernel.shape[1], COLUMNS):
        columns = slice(first, first + COLUMNS)
        logits = _head_output(multiply(entering, kernel[:, columns].astype(np.float32)), decoder, columns)
        higher = np.maximum(peak, logits.max(axis=1, keepdims=True))
        total = total * np.exp(peak - higher) + np.exp(logits - higher).sum(axis=1, keepdims=True)
        best = np.sort(np.concatenate([peak, second[:, None], logits], axis=1), axis=1)
        highest = np.where(higher[:, 0] > peak[:, 0], first + logits.argmax(axis=1).astype(np.int32), highest)
        peak, second = higher, best[:, -2]
    return OverVocabulary(peak + np.log(total), peak, highest, peak[:, 0] - second)


def _head_kernel(decoder: ServedDecoder) -> npt.NDArray[np.generic]:
    """Return the kernel of the head, [width, vocabulary]."""
    kernel = on_host(decoder.head[1])
    return kernel.T if decoder.head_as_rows else kernel


def _head_output(logits: Floats, decoder: ServedDecoder, columns: TokenIds | slice) -> Floats:
    """Return what the head makes of its products for some columns, [T, columns]."""
    biased = logits if len(decoder.head) < 3 else logits + on_host(decoder.head[2])[columns].astype(np.float32)
    return capped(biased, decoder.config.caps.logits)


def normed(values: Floats, norm: Norm) -> Floats:
    """Return the root-mean-square norm over the last axis."""
    return _normed(values, norm.weight[...], norm.offset, norm.epsilon)


def _maybe_normed(values: Floats, norm: Norm | None) -> Floats:
    return values if norm is None else normed(values, norm)


def linear(rows: Floats, projection: Linear) -> Floats:
    """Return the projection of [T, in] to [T, out]."""
    kernel = projection.weight[...]
    out = multiply(rounded(rows, kernel.dtype), on_host(kernel).astype(np.float32))
    if projection.low_rank is not None:
        down, up = (on_host(factor[...]) for factor in (projection.low_rank.down, projection.low_rank.up))
        between = multiply(rounded(rows, down.dtype), down.astype(np.float32))
        out += multiply(rounded(between, up.dtype), up.astype(np.float32))
    return out if projection.bias is None else out + on_host(projection.bias[...]).astype(np.float32)


def _normed(values: Floats, weight: Array, offset: float, epsilon: float) -> Floats:
    scale = np.sqrt(np.mean(values * values, axis=-1, keepdims=True) + np.float32(epsilon))
    out: Floats = values / scale * (on_host(weight).astype(np.float32) + np.float32(offset))
    return out


def logistic(values: Floats) -> Floats:
    """Return the logistic function, by the hyperbolic tangent, which does not overflow."""
    found: Floats = np.multiply(np.float32(0.5), 1 + np.tanh(values / 2))
    return found


def silu(values: Floats) -> Floats:
    return values * logistic(values)


def _gelu(values: Floats) -> Floats:
    """Return the Gaussian error linear unit by the hyperbolic tangent (arXiv:1606.08415)."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (values + np.float32(0.044715) * values * values * values)
    found: Floats = np.multiply(np.float32(0.5), values) * (1 + np.tanh(inner))
    return found


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {"silu": silu, "gelu_pytorch_tanh": _gelu}
"""By HuggingFace's names."""


def _rotated(heads: Floats, rotary: RotaryAngles) -> Floats:
    """Return each pair (d, d + pairs) of [T, heads, D] rotated by its position's angle."""
    cos, sin = rotary.cos[:, None], rotary.sin[:, None]
    pairs = cos.shape[-1]
    first, second, rest = np.split(heads, [pairs, 2 * pairs], axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
