"""The decoder of all families in Flax NNX: parameters under HuggingFace's names, layers stacked.

``model.layers.self_attn.q_proj.weight`` here is ``model.layers.{i}.self_attn.q_proj.weight`` there, for all ``i`` at
once: [layers, in, out]. One compiled layer then serves every layer, which keeps compile times small. Kernels are stored
``[in, out]``, the transpose of HuggingFace's, because a product with an untransposed right-hand side is the fast one.

The residual stream, norms, softmax and every sum are float32; what enters a product is of the weights' dtype.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jax.typing import DTypeLike

from model.attention import attend
from model.config import DecoderConfig
from model.product import project, rms_norm


class Stream(NamedTuple):
    """Positions on their way through the layers.

    hidden: float32 [B, L, width]; cos, sin: float32 [1 or B, L, head_dim / 2], the rotation of each position.
    """

    hidden: Array
    cos: Array
    sin: Array


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


class Attention(nnx.Module):
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

    def __call__(self, rows: Stream, seen: Stream, start: Array, stop: Array, differentiable: bool) -> Array:
        """``rows`` look at ``seen``; both normed. Returns float32 [B, Q, width]."""
        dtype = self.q_proj.weight.dtype
        queries, keys = self._heads(self.q_proj(rows.hidden)), self._heads(self.k_proj(seen.hidden))
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = _rotate(queries, rows).astype(dtype), _rotate(keys, seen).astype(dtype)
        values = self._heads(self.v_proj(seen.hidden)).astype(dtype)
        out = attend(queries, keys, values, start, stop, differentiable=differentiable).out
        return self.o_proj(out.reshape(*out.shape[:2], -1))

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
        self.self_attn = Attention(config, stack, dtype, rngs)
        self.post_attention_layernorm = Norm(config.width, stack, config, dtype)
        self.mlp = MLP(config, stack, dtype, rngs)

    def __call__(self, rows: Stream, seen: Stream, start: Array, stop: Array, differentiable: bool) -> Array:
        """The layer's output for ``rows`` (which see ``start`` to ``stop`` of ``seen``): float32 [B, Q, width]."""
        normed_rows = rows._replace(hidden=self.input_layernorm(rows.hidden))
        normed_seen = seen._replace(hidden=self.input_layernorm(seen.hidden))
        hidden = rows.hidden + self.self_attn(normed_rows, normed_seen, start, stop, differentiable)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Body(nnx.Module):
    """Everything below the head."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embed_tokens = Embedding(config, dtype, rngs)
        self.layers = Layer(config, (config.layers,), dtype, rngs)
        self.norm = Norm(config.width, (), config, dtype)

    def at_every_position(self, tokens: Array) -> Array:
        """Final hidden states of every position, for training: tokens int32 [B, L], returns float32 [B, L, width]."""
        stream = self._below(tokens, self.config.layers, differentiable=True)
        return self.norm(stream.hidden)

    def at_scoring_positions(self, tokens: Array, last: Array) -> Array:
        """Final hidden states where scores are read. The last layer computes nothing else.

        tokens: int32 [B, L], padded on the right; last: int32 [B], the scoring position of each sequence.
        Returns float32 [B, width].
        """
        seen = self._below(tokens, self.config.layers - 1, differentiable=False)
        rows = Stream(
            jnp.take_along_axis(seen.hidden, last[:, None, None], axis=1),
            jnp.take_along_axis(seen.cos, last[:, None, None], axis=1),
            jnp.take_along_axis(seen.sin, last[:, None, None], axis=1),
        )
        stop = last[:, None] + 1
        hidden = self._layer(self.config.layers - 1)(rows, seen, jnp.zeros_like(stop), stop, False)
        return self.norm(hidden)[:, 0]

    def _below(self, tokens: Array, layers: int, differentiable: bool) -> Stream:
        """Causal attention through the first ``layers`` layers."""
        positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        cos, sin = rotation(positions, self.config)
        start, stop = jnp.zeros_like(positions), positions + 1

        def layer(hidden: Array, index: Array) -> tuple[Array, None]:
            stream = Stream(hidden, cos, sin)
            return self._layer(index)(stream, stream, start, stop, differentiable), None

        hidden, _ = lax.scan(layer, self.embed_tokens(tokens), jnp.arange(layers, dtype=jnp.int32))
        return Stream(hidden, cos, sin)

    def _layer(self, index: Array | int) -> Layer:
        """One layer, its parameters sliced out of the stack: no layer is ever copied together with others."""
        graph, stacked = nnx.split(self.layers)
        return nnx.merge(graph, jax.tree.map(lambda weight: _slice(weight, index), stacked))


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


def _slice(stack: Array, index: Array | int) -> Array:
    """One layer's weight of a stack.

    A stack of uint16 is bf16 as the integers of its bits, which is how the engine holds it: the CPU compiler takes a
    slice of bf16 by way of float32, and copies the whole stack to float32 on every call for it.
    """
    weight = lax.dynamic_index_in_dim(stack, index, 0, keepdims=False)
    return lax.bitcast_convert_type(weight, jnp.bfloat16) if stack.dtype == jnp.uint16 else weight


def _normal(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    return 0.02 * jax.random.normal(rngs.params(), shape, dtype)
