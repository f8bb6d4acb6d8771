"""The decoder of all families in Flax NNX, with stacked layers and HuggingFace's names of parameters.

``model.layers.self_attn.q_proj.weight`` stacks HuggingFace's ``model.layers.{i}.self_attn.q_proj.weight`` of all
layers: [layers, in, out]; the kernels of experts are [layers, experts, in, out]. Kernels are stored ``[in, out]``, the
transpose of HuggingFace's, because a product with an untransposed right-hand side is faster.

The residual stream, norms, softmax and every sum are float32; operands of products have the weights' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from model.architecture.config import DecoderConfig
from model.architecture.delta_net import GatedDeltaNet, RecurrentInputs
from model.architecture.families import Norms, QKNorm
from model.architecture.mixture import MixtureOfExperts
from model.architecture.mlp import MLP
from model.architecture.projections import Embedding, Linear, Norm, Total, normed
from model.architecture.rope import Rope
from model.attention.contract import AttentionOutput, with_sinks
from model.layers.linear import RMSNorm, alone, scaled
from model.layers.rotation import RotaryEmbedding, Rotation


class KeyValues(NamedTuple):
    """Keys and values of positions: [..., K, D] each, in the weights' dtype."""

    keys: Array
    values: Array


class SelfAttention(nnx.Module):
    """The projections of grouped-query attention, with rotary positions. Some families have QK norm, a gate, sinks."""

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        heads, kv_heads, head_dim = config.query_heads, config.kv_heads, config.head_dim
        self.head_dim = head_dim
        self.query_scale = config.query_scale
        self.norms_all_heads = config.traits.qk_norm is QKNorm.ALL_HEADS
        qkv = {"biased": config.qkv_bias}
        self.q_proj = Linear(config.width, heads * head_dim, stack, dtype, rngs, **qkv)
        self.k_proj = Linear(config.width, kv_heads * head_dim, stack, dtype, rngs, **qkv)
        self.v_proj = Linear(config.width, kv_heads * head_dim, stack, dtype, rngs, **qkv)
        self.o_proj = Linear(heads * head_dim, config.width, stack, dtype, rngs, biased=config.attention_bias)
        self.sinks = nnx.Param(jnp.zeros((*stack, heads), dtype)) if config.traits.is_gpt_oss else None
        self.output_gate_proj = (
            Linear(config.width, heads * head_dim, stack, dtype, rngs) if config.traits.is_hybrid else None
        )
        normed_together = (heads, kv_heads) if self.norms_all_heads else (1, 1)
        self.q_norm = Norm(normed_together[0] * head_dim, stack, config, dtype) if config.traits.qk_norm else None
        self.k_norm = Norm(normed_together[1] * head_dim, stack, config, dtype) if config.traits.qk_norm else None

    def inputs(self, hidden: Array, norm: Norm | None, rotation: Rotation) -> tuple[Array, KeyValues]:
        """Return queries, keys and values of hidden states, float32 [..., width], behind the norm before attention."""
        linears = self.q_proj, self.k_proj, self.v_proj
        by_head = not self.norms_all_heads and (self.q_norm is not None or self.query_scale == 1.0)
        if rotation.project_qkv is None or not by_head or not all(linear.is_plain for linear in linears):
            entering = normed(hidden, norm)
            return self.queries(entering, rotation), self.key_values(entering, rotation)
        weights = [linear.weight.get_value() for linear in linears]
        of_heads = [_of_head(self.q_norm, self.query_scale), _of_head(self.k_norm)]
        before = None if norm is None else norm.unscaled
        queries, *key_values = rotation.project_qkv(hidden, before, weights, of_heads, self.head_dim)
        return queries, KeyValues(*key_values)

    def queries(self, entering: Array, rotation: Rotation) -> Array:
        """Return queries [..., H, D], in the weights' dtype, of what enters attention, [..., width]."""
        return self._rotated(self.q_proj, entering, self.q_norm, rotation, self.query_scale)

    def key_values(self, entering: Array, rotation: Rotation) -> KeyValues:
        """Return keys and values of what enters attention, [..., width]."""
        keys = self._rotated(self.k_proj, entering, self.k_norm, rotation)
        return KeyValues(keys, rotation.values(self.v_proj(entering), self.head_dim, keys.dtype))

    def attended(self, found: AttentionOutput) -> Array:
        """Return the output of attention, [..., H, D], of what it has found among the keys."""
        return with_sinks(found, None if self.sinks is None else self.sinks[...])

    def output(self, attended: Array, entering: Array, total: Total) -> Array:
        """Return what attention adds, [..., width]; attended: its output, [..., H, D], of what entered it."""
        flat = attended.reshape(*attended.shape[:-2], -1)
        if self.output_gate_proj is not None:
            flat = flat * jax.nn.sigmoid(self.output_gate_proj(entering))
        return self.o_proj(flat, total)

    def _rotated(
        self, linear: Linear, entering: Array, norm: Norm | None, rotation: Rotation, scale: float = 1.0
    ) -> Array:
        of_heads = None
        if norm is not None and not self.norms_all_heads:
            of_heads, norm, scale = _of_head(norm, scale), None, 1.0
        projected = scaled(normed(linear(entering), norm), scale)
        return rotation.heads(projected, self.head_dim, of_heads, linear.weight.dtype)


def _of_head(norm: Norm | None, scale: float = 1.0) -> RMSNorm | None:
    """Return the norm of a head whose result is scaled."""
    return None if norm is None else RMSNorm(scaled(norm.factors, scale), norm.epsilon)


class MixingLayer(nnx.Module):
    """What all kinds of layers have: norms, the MLP, and the residual stream around what mixes tokens.

    A module is one layer, or a stack of layers whose parameters have a leading axis.
    """

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        def norm(*places: Norms) -> Norm | None:
            return Norm(config.width, stack, config, dtype) if config.traits.norms in places else None

        self.residual_scale = config.multipliers.residual_multiplier
        self.norms = config.traits.norms
        self.input_layernorm = norm(Norms.BEFORE, Norms.AROUND)
        self.post_attention_layernorm = Norm(config.width, stack, config, dtype)
        self.mlp: MLP | MixtureOfExperts = (
            MLP(config, config.mlp_width, stack, dtype, rngs)
            if config.mixture is None
            else MixtureOfExperts(config, config.mixture, stack, dtype, rngs)
        )
        self.pre_feedforward_layernorm = norm(Norms.AROUND)
        self.post_feedforward_layernorm = norm(Norms.AFTER, Norms.AROUND)

    @property
    def norm_after_attention(self) -> Norm | None:
        """The norm of what attention adds. HuggingFace calls it as the one before the MLP of most families."""
        return None if self.norms is Norms.BEFORE else self.post_attention_layernorm

    @property
    def norm_before_mlp(self) -> Norm | None:
        """The norm of what enters the MLP."""
        return self.post_attention_layernorm if self.norms is Norms.BEFORE else self.pre_feedforward_layernorm

    def entering(self, hidden: Array) -> Array:
        """Return what enters attention or recurrence, of hidden states, float32 [..., width]."""
        return normed(hidden, self.input_layernorm)

    @property
    def mixer(self) -> SelfAttention | GatedDeltaNet:
        """What mixes tokens."""
        raise NotImplementedError

    def output_mlp(self, hidden: Array, mixed: Array, total: Total = alone) -> Array:
        """Return the hidden states after the layer, float32 [..., width].

        mixed: of attention, [..., H, D], or of the recurrence, [..., Hv, Dv].
        """
        return self.after_mlp(self.after_mixing(hidden, mixed, total), total)

    def after_mixing(self, hidden: Array, mixed: Array, total: Total = alone) -> Array:
        """Return the hidden states between what mixes tokens and the MLP."""
        added = self.mixer.output(mixed, self.entering(hidden), total)
        return hidden + scaled(normed(added, self.norm_after_attention), self.residual_scale)

    def after_mlp(self, hidden: Array, total: Total = alone) -> Array:
        """Return the hidden states after the layer, of those before its MLP."""
        out = self.mlp(hidden, self.norm_before_mlp, total)
        return hidden + scaled(normed(out, self.post_feedforward_layernorm), self.residual_scale)


class Layer(MixingLayer):
    """A layer with attention, or a stack of them.

    The caller computes attention, between :meth:`attention_inputs` and :meth:`output_mlp`.
    """

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        super().__init__(config, stack, dtype, rngs)
        self.self_attn = SelfAttention(config, stack, dtype, rngs)

    def attention_inputs(self, hidden: Array, rotation: Rotation) -> tuple[Array, KeyValues]:
        """Return queries [..., H, D], keys and values of hidden states, float32 [..., width]."""
        return self.self_attn.inputs(hidden, self.input_layernorm, rotation)

    def queries(self, hidden: Array, rotation: Rotation) -> Array:
        """Return queries [..., H, D] of hidden states, float32 [..., width]."""
        return self.self_attn.queries(self.entering(hidden), rotation)

    def key_values(self, hidden: Array, rotation: Rotation) -> KeyValues:
        """Return keys and values of hidden states, float32 [..., width]."""
        return self.self_attn.key_values(self.entering(hidden), rotation)

    @property
    def mixer(self) -> SelfAttention:
        return self.self_attn


class RecurrentLayer(MixingLayer):
    """A recurrent layer, or a stack of them. The caller computes the recurrence between inputs and output."""

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        super().__init__(config, stack, dtype, rngs)
        self.linear_attn = GatedDeltaNet(config, stack, dtype, rngs)

    def inputs(self, hidden: Array) -> RecurrentInputs:
        """Return what the recurrence takes of hidden states, float32 [..., width]."""
        return self.linear_attn.inputs(self.entering(hidden))

    @property
    def mixer(self) -> GatedDeltaNet:
        return self.linear_attn


class Body(nnx.Module):
    """Everything below the head."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike, rngs: nnx.Rngs, *, tied_as_rows: bool) -> None:
        self.config = config
        self.embed_tokens = Embedding(config, dtype, rngs, tied_as_rows=tied_as_rows)
        self.layers = Layer(config, (config.attention_layers,), dtype, rngs)
        count = config.layers - config.attention_layers
        self.recurrent_layers = RecurrentLayer(config, (count,), dtype, rngs) if count else None
        self.norm = Norm(config.width, (), config, dtype, scale=1 / config.multipliers.logits_scaling)


class Decoder(nnx.Module):
    """A causal language model, or the same with a head for classes, which HuggingFace calls ``score``.

    Where these are the labels of decisions, it calls the head ``proj``.

    Its weights are random until it is loaded (:func:`model.architecture.weights.load`) or trained.

    tied_as_rows: see :class:`model.platforms.Platform`.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
        tied_as_rows: bool = False,
    ) -> None:
        self.config = config
        self.model = Body(config, dtype, rngs, tied_as_rows=tied_as_rows)
        own = None if config.tied else Linear(config.width, config.outputs, (), dtype, rngs, biased=config.decides)
        self.lm_head = None if config.classes else own
        self.score = own if config.classes else None

    @property
    def head(self) -> Linear | None:
        """The head; None if it is the embedding."""
        return self.score if self.lm_head is None else self.lm_head

    @property
    def head_as_rows(self) -> bool:
        """Whether the kernel of the head is a tied embedding that is stored in rows."""
        return self.head is None and self.model.embed_tokens.as_rows

    def head_kernel(self) -> Array:
        """Return the kernel that computes logits: [width, outputs], or its transpose if :attr:`head_as_rows`."""
        kernel = self.model.embed_tokens if self.head is None else self.head
        return kernel.weight.get_value()


def rotary_embeddings(positions: Array, config: DecoderConfig) -> tuple[RotaryEmbedding, ...]:
    """Return the rotary embedding of int32 positions [...], and that of layers with a window where it differs."""
    return tuple(_rotary_embedding(positions, rope, config.head_dim) for rope in config.ropes)


def of_kind(embeddings: Sequence[RotaryEmbedding], is_windowed: Array) -> RotaryEmbedding:
    """Return the rotary embedding of a layer. is_windowed: bool [], whether it has a window."""
    if len(embeddings) == 1:
        return embeddings[0]
    full, own = embeddings
    return RotaryEmbedding(jnp.where(is_windowed, own.cos, full.cos), jnp.where(is_windowed, own.sin, full.sin))


def _rotary_embedding(positions: Array, rope: Rope, head_dim: int) -> RotaryEmbedding:
    angles = positions[..., None].astype(jnp.float32) * rope.frequencies(head_dim).astype(np.float32)
    return RotaryEmbedding(rope.magnitude * jnp.cos(angles), rope.magnitude * jnp.sin(angles))
