"""The decoder of all families in Flax NNX: parameters under HuggingFace's names, layers stacked.

``model.layers.self_attn.q_proj.weight`` here is ``model.layers.{i}.self_attn.q_proj.weight`` there, for all ``i`` at
once: [layers, in, out]. One compiled layer then serves every layer, which keeps compile times small. Kernels are stored
``[in, out]``, the transpose of HuggingFace's, because a product with an untransposed right-hand side is the fast one.

The residual stream, norms, softmax and every sum are float32; what enters a product is of the weights' dtype.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jax.typing import DTypeLike

from model.attention.contract import Attention, causal
from model.attention.tiles import TiledAttention
from model.config import DecoderConfig
from model.linear import project, rms_norm

DIFFERENTIABLE = TiledAttention(differentiable=True)
"""The attention of training."""


class Rotation(NamedTuple):
    """The rotary angles of positions: cosines and sines, float32 [..., head_dim / 2]."""

    cos: Array
    sin: Array


class KeyValues(NamedTuple):
    """Keys and values of positions: [..., K, D] each, in the weights' dtype."""

    keys: Array
    values: Array


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

    def queries(self, normed: Array, rotation: Rotation) -> Array:
        """Queries of normed positions [..., width]: [..., H, D], in the weights' dtype."""
        queries = self._heads(self.q_proj(normed))
        queries = queries if self.q_norm is None else self.q_norm(queries)
        return _rotate(queries, rotation).astype(self.q_proj.weight.dtype)

    def key_values(self, normed: Array, rotation: Rotation) -> KeyValues:
        """Keys and values of normed positions [..., width]."""
        dtype = self.k_proj.weight.dtype
        keys = self._heads(self.k_proj(normed))
        keys = keys if self.k_norm is None else self.k_norm(keys)
        return KeyValues(_rotate(keys, rotation).astype(dtype), self._heads(self.v_proj(normed)).astype(dtype))

    def _heads(self, projected: Array) -> Array:
        return projected.reshape(*projected.shape[:-1], -1, self.head_dim)


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
    """One decoder layer, or a stack of them whose parameters have a leading axis.

    A layer's work comes in two halves, with attention between them: queries, keys and values of its positions, and what
    becomes of the positions once their queries have looked.
    """

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.input_layernorm = Norm(config.width, stack, config, dtype)
        self.self_attn = SelfAttention(config, stack, dtype, rngs)
        self.post_attention_layernorm = Norm(config.width, stack, config, dtype)
        self.mlp = MLP(config, stack, dtype, rngs)

    def queries(self, hidden: Array, rotation: Rotation) -> Array:
        """Queries of positions, float32 [..., width]: [..., H, D]."""
        return self.self_attn.queries(self.input_layernorm(hidden), rotation)

    def key_values(self, hidden: Array, rotation: Rotation) -> KeyValues:
        """Keys and values of positions, float32 [..., width]."""
        return self.self_attn.key_values(self.input_layernorm(hidden), rotation)

    def leave(self, hidden: Array, attended: Array) -> Array:
        """The positions after the layer, float32 [..., width]; attended: what their queries saw, [..., H, D]."""
        hidden = hidden + self.self_attn.o_proj(attended.reshape(*attended.shape[:-2], -1))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Body(nnx.Module):
    """Everything below the head."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embed_tokens = Embedding(config, dtype, rngs)
        self.layers = Layer(config, (config.layers,), dtype, rngs)
        self.norm = Norm(config.width, (), config, dtype)

    def at_every_position(self, tokens: Array, attention: Attention = DIFFERENTIABLE) -> Array:
        """Final hidden states of every position, for training: tokens int32 [B, L], returns float32 [B, L, width]."""
        length = tokens.shape[1]
        turned = rotation(jnp.arange(length, dtype=jnp.int32)[None], self.config)
        graph, stacked = nnx.split(self.layers)

        def through(hidden: Array, one: nnx.State[Any, Any]) -> tuple[Array, None]:
            layer: Layer = nnx.merge(graph, one)
            seen = layer.key_values(hidden, turned)
            attended = attention.attend(layer.queries(hidden, turned), *seen, causal(length))
            return layer.leave(hidden, attended.out), None

        hidden, _ = lax.scan(through, self.embed_tokens(tokens), stacked)
        return self.norm(hidden)


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


def rotation(positions: Array, config: DecoderConfig) -> Rotation:
    """The rotary angles of int32 positions [...]."""
    frequencies = config.rope.frequencies(config.head_dim).astype(np.float32)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return Rotation(config.rope.magnitude * jnp.cos(angles), config.rope.magnitude * jnp.sin(angles))


def _rotate(heads: Array, rotation: Rotation) -> Array:
    """Turn each pair (d, d + D / 2) of [..., heads, D] by its position's angle, as HuggingFace pairs them."""
    cos, sin = rotation.cos[..., None, :], rotation.sin[..., None, :]
    first, second = jnp.split(heads, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _normal(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    return 0.02 * jax.random.normal(rngs.params(), shape, dtype)
