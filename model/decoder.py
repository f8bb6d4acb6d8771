"""The decoder of all families in Flax NNX: parameters under HuggingFace's names, layers stacked.

``model.layers.self_attn.q_proj.weight`` here is ``model.layers.{i}.self_attn.q_proj.weight`` there, for all ``i`` at
once: [layers, in, out]. One compiled layer then serves every layer, which keeps compile times small. Kernels are stored
``[in, out]``, the transpose of HuggingFace's, because a product with an untransposed right-hand side is the fast one.

The residual stream, norms, softmax and every sum are float32; what enters a product is of the weights' dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jax.typing import DTypeLike

from model.attention import Attention, PrefixBlocks, causal, merge
from model.attention_tiles import TiledAttention
from model.config import DecoderConfig
from model.product import from_bits, project, rms_norm

DIFFERENTIABLE = TiledAttention(differentiable=True)
"""The attention of training."""


class Stream(NamedTuple):
    """Positions on their way through the layers.

    hidden: float32 [B, L, width]; cos, sin: float32 [1 or B, L, head_dim / 2], the rotation of each position; ranges:
    int32 [1 or B, L, N, 2], what each position sees within the stream (:meth:`model.attention.Attention.attend`).
    """

    hidden: Array
    cos: Array
    sin: Array
    ranges: Array

    def at(self, positions: Array) -> Stream:
        """Some positions of each sequence: int32 [B, n]."""
        return Stream(*(jnp.take_along_axis(part, _like(positions, part), axis=1) for part in self))


class KeyValues(NamedTuple):
    """Keys and values of positions: [B, S, K, D] each, in the weights' dtype."""

    keys: Array
    values: Array


Look = Callable[[Array, KeyValues, Stream], Array]
"""Attention as a layer calls it: queries [B, Q, H, D], what they look at, and whose queries they are."""


class Norm(nnx.Module):
    """The weight of a root-mean-square norm: [*stack, size]."""

    def __init__(self, size: int, stack: tuple[int, ...], config: DecoderConfig, dtype: DTypeLike) -> None:
        self.weight = nnx.Param(jnp.ones((*stack, size), dtype))
        self.epsilon = config.norm_epsilon

    def __call__(self, values: Array) -> Array:
        return rms_norm(values, self.weight[...], self.epsilon)


class Linear(nnx.Module):
    """A projection: [*stack, in, out], and [*stack, out] where it has a bias."""

    def __init__(
        self, size: int, out: int, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs, *, biased: bool = False
    ) -> None:
        self.weight = nnx.Param(_normal(rngs, (*stack, size, out), dtype))
        self.bias = nnx.Param(jnp.zeros((*stack, out), dtype)) if biased else None

    def __call__(self, values: Array) -> Array:
        out = project(values, self.weight[...])
        return out if self.bias is None else out + self.bias[...].astype(jnp.float32)


class Embedding(nnx.Module):
    """A vector per token id: [vocabulary, width], or where it is the head as well, as that: [width, vocabulary].

    A head wants to be that way round, and looking vectors up in columns costs next to nothing (under 1 ms for 256
    tokens in a vocabulary of 150,000), so a tied embedding is held once.
    """

    def __init__(self, config: DecoderConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        shape = (config.width, config.vocabulary) if config.tied else (config.vocabulary, config.width)
        self.weight = nnx.Param(_normal(rngs, shape, dtype))
        self.tied = config.tied

    def __call__(self, tokens: Array) -> Array:
        weight = self.weight[...]
        vectors = jnp.moveaxis(jnp.take(weight, tokens, axis=1, mode="clip"), 0, -1) if self.tied else weight[tokens]
        return vectors.astype(jnp.float32)


class SelfAttention(nnx.Module):
    """Grouped-query attention with rotary positions, and normed queries and keys where the family has them."""

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        heads, kv_heads, head_dim = config.query_heads, config.kv_heads, config.head_dim
        self.head_dim = head_dim
        qkv = {"biased": config.qkv_bias}
        self.q_proj = Linear(config.width, heads * head_dim, stack, dtype, rngs, **qkv)
        self.k_proj = Linear(config.width, kv_heads * head_dim, stack, dtype, rngs, **qkv)
        self.v_proj = Linear(config.width, kv_heads * head_dim, stack, dtype, rngs, **qkv)
        self.o_proj = Linear(heads * head_dim, config.width, stack, dtype, rngs, biased=config.attention_bias)
        self.q_norm = Norm(head_dim, stack, config, dtype) if config.head_norms else None
        self.k_norm = Norm(head_dim, stack, config, dtype) if config.head_norms else None

    def __call__(self, rows: Stream, seen: Stream, look: Look) -> tuple[Array, KeyValues]:
        """``rows`` look at ``seen``; both normed. Returns float32 [B, Q, width], and what was there to be seen."""
        dtype = self.q_proj.weight.dtype
        queries, keys = self._heads(self.q_proj(rows.hidden)), self._heads(self.k_proj(seen.hidden))
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = _rotate(queries, rows).astype(dtype), _rotate(keys, seen).astype(dtype)
        key_values = KeyValues(keys, self._heads(self.v_proj(seen.hidden)).astype(dtype))
        out = look(queries, key_values, rows)
        return self.o_proj(out.reshape(*out.shape[:2], -1)), key_values

    def _heads(self, projected: Array) -> Array:
        return projected.reshape(*projected.shape[:2], -1, self.head_dim)  # [B, L, heads, D]


class MLP(nnx.Module):
    """The gated MLP."""

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        biased = config.mlp_bias
        self.gate_proj = Linear(config.width, config.mlp_width, stack, dtype, rngs, biased=biased)
        self.up_proj = Linear(config.width, config.mlp_width, stack, dtype, rngs, biased=biased)
        self.down_proj = Linear(config.mlp_width, config.width, stack, dtype, rngs, biased=biased)

    def __call__(self, values: Array) -> Array:
        return self.down_proj(jax.nn.silu(self.gate_proj(values)) * self.up_proj(values))


class Layer(nnx.Module):
    """One decoder layer, or a stack of them whose parameters have a leading axis."""

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.input_layernorm = Norm(config.width, stack, config, dtype)
        self.self_attn = SelfAttention(config, stack, dtype, rngs)
        self.post_attention_layernorm = Norm(config.width, stack, config, dtype)
        self.mlp = MLP(config, stack, dtype, rngs)

    def __call__(self, rows: Stream, seen: Stream, look: Look) -> tuple[Array, KeyValues]:
        """The layer's output for ``rows``, float32 [B, Q, width], and the keys and values of ``seen``."""
        normed_rows = rows._replace(hidden=self.input_layernorm(rows.hidden))
        normed_seen = seen._replace(hidden=self.input_layernorm(seen.hidden))
        attended, key_values = self.self_attn(normed_rows, normed_seen, look)
        hidden = rows.hidden + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), key_values


class Body(nnx.Module):
    """Everything below the head."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embed_tokens = Embedding(config, dtype, rngs)
        self.layers = Layer(config, (config.layers,), dtype, rngs)
        self.norm = Norm(config.width, (), config, dtype)

    def at_every_position(self, tokens: Array, attention: Attention = DIFFERENTIABLE) -> Array:
        """Final hidden states of every position, for training: tokens int32 [B, L], returns float32 [B, L, width]."""
        stream = self._enter(tokens, jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], causal(tokens.shape[1]))
        return self.norm(self._below(stream, self.config.layers, _within(attention), keep=False)[0])

    def rows(self, tokens: Array, lengths: Array, ends: Array, prefix: PrefixBlocks, attention: Attention) -> Array:
        """Final hidden states at the last token of rows that each continue a prefix by tokens of their own.

        tokens: int32 [R, L], padded on the right; lengths: int32 [R], at least 1 where the row matters; ends: int32
        [R], how many tokens of the prefix the row sees, which is also its first token's position (0: the row stands
        alone). Returns float32 [R, width].
        """
        return self._extend(tokens, lengths, ends, prefix, attention, keep=False)[0]

    def prefill(
        self, tokens: Array, length: Array, start: Array, prefix: PrefixBlocks, attention: Attention
    ) -> tuple[Array, Array, Array]:
        """Continue a prefix of ``start`` tokens by a chunk, which a later call can look at.

        tokens: int32 [C], padded on the right; length, start: int32 scalars. Returns the final hidden state of the
        chunk's last token, float32 [width], and for a pool its keys [layers, K, D, C] and values [layers, K, C, D].
        """
        hidden, kept = self._extend(tokens[None], length[None], start[None], prefix, attention, keep=True)
        return hidden[0], kept.keys[:, 0].transpose(0, 2, 3, 1), kept.values[:, 0].transpose(0, 2, 1, 3)

    def packed(self, tokens: Array, positions: Array, ranges: Array, read: Array, attention: Attention) -> Array:
        """Final hidden states at some places of one sequence that holds prefixes and items of several groups.

        tokens, positions: int32 [S]; ranges: int32 [S, N, 2], what each token sees; read: int32 [n], places in the
        sequence. Returns float32 [n, width].
        """
        stream = self._enter(tokens[None], positions[None], ranges[None])
        return self._read(stream, read[None], _within(attention), keep=False)[0][0]

    def _extend(
        self, tokens: Array, lengths: Array, ends: Array, prefix: PrefixBlocks, attention: Attention, *, keep: bool
    ) -> tuple[Array, KeyValues]:
        def look(layer: Array | int) -> Look:
            def both(queries: Array, seen: KeyValues, rows: Stream) -> Array:
                before = attention.attend_prefix(queries, prefix._replace(layer=layer), ends)
                return merge(before, attention.attend(queries, *seen, rows.ranges)).out

            return both

        length = tokens.shape[1]
        stream = self._enter(tokens, ends[:, None] + jnp.arange(length, dtype=jnp.int32), causal(length))
        hidden, kept = self._read(stream, jnp.maximum(lengths - 1, 0)[:, None], look, keep=keep)
        return hidden[:, 0], kept

    def _enter(self, tokens: Array, positions: Array, ranges: Array) -> Stream:
        return Stream(self.embed_tokens(tokens), *rotation(positions, self.config), ranges)

    def _read(
        self, stream: Stream, read: Array, look: Callable[[Array | int], Look], *, keep: bool
    ) -> tuple[Array, KeyValues]:
        """Final hidden states at places [B, n], where alone the last layer is computed.

        And keys and values [layers, B, S, K, D], where they are to be kept; else those of the last layer.
        """
        last = self.config.layers - 1
        hidden, below = self._below(stream, last, look, keep=keep)
        seen = stream._replace(hidden=hidden)
        out, top = self._layer(last)(seen.at(read), seen, look(last))
        if below is not None:
            top = KeyValues(*(jnp.concatenate([lower, upper[None]]) for lower, upper in zip(below, top, strict=True)))
        return self.norm(out), top

    def _below(
        self, stream: Stream, layers: int, look: Callable[[Array | int], Look], *, keep: bool
    ) -> tuple[Array, KeyValues | None]:
        """Through the first ``layers`` layers: hidden states, and where kept keys and values [layers, B, S, K, D]."""

        def layer(hidden: Array, index: Array) -> tuple[Array, KeyValues | None]:
            here = stream._replace(hidden=hidden)
            hidden, key_values = self._layer(index)(here, here, look(index))
            return hidden, key_values if keep else None

        hidden, kept = lax.scan(layer, stream.hidden, jnp.arange(layers, dtype=jnp.int32))
        return hidden, kept

    def _layer(self, index: Array | int) -> Layer:
        """One layer, its parameters sliced out of the stack: no layer is ever copied together with others."""
        graph, stacked = nnx.split(self.layers)
        return nnx.merge(graph, jax.tree.map(lambda stack: from_bits(stack[index]), stacked))


class Decoder(nnx.Module):
    """A causal language model. Random until loaded (:func:`model.weights.load`) or trained.

    dtype: of all parameters. rngs: for the initial values.
    """

    def __init__(self, config: DecoderConfig, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs) -> None:
        self.config = config
        self.model = Body(config, dtype, rngs)
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, (), dtype, rngs)

    def head_kernel(self) -> Array:
        """What turns a hidden state into logits: [width, vocabulary]."""
        kernel = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return kernel.weight[...]

    def logits(self, tokens: Array) -> Array:
        """Logits of every position under causal attention, differentiable: int32 [B, L] to float32 [B, L, V]."""
        return project(self.model.at_every_position(tokens), self.head_kernel())


def rotation(positions: Array, config: DecoderConfig) -> tuple[Array, Array]:
    """Cosine and sine of the rotary angles, float32 [..., head_dim / 2], for int32 positions [...]."""
    frequencies = config.rope.frequencies(config.head_dim).astype(np.float32)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return config.rope.magnitude * jnp.cos(angles), config.rope.magnitude * jnp.sin(angles)


def _rotate(heads: Array, stream: Stream) -> Array:
    """Turn each pair (d, d + D / 2) of [B, L, heads, D] by its position's angle, as HuggingFace pairs them."""
    cos, sin = stream.cos[:, :, None], stream.sin[:, :, None]
    first, second = jnp.split(heads, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _within(attention: Attention) -> Callable[[Array | int], Look]:
    """Attention that looks at nothing but the stream itself."""
    return lambda layer: lambda queries, seen, rows: attention.attend(queries, *seen, rows.ranges).out


def _like(positions: Array, part: Array) -> Array:
    """[B, n] with as many axes as ``part`` has."""
    return positions.reshape(*positions.shape, *[1] * (part.ndim - 2))


def _normal(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    return 0.02 * jax.random.normal(rngs.params(), shape, dtype)
