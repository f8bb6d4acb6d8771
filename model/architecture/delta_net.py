"""The weights of a Gated DeltaNet (arXiv:2412.06464), as HuggingFace has it in Qwen3.5.

The recurrence between them is in :mod:`model.delta_rule`. Everything is float32 but the operands of projections.

Shapes: Hk heads of queries and keys, Dk numbers each; Hv heads of values, Dv numbers each; C channels of the
convolution, which are queries, keys and values of all heads one after another.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from model.architecture.config import DecoderConfig
from model.architecture.projections import Linear, Norm, Total, normal
from model.delta_rule import CHUNK, DeltaInputs, delta_rule
from model.linear import alone

_UNIT = 1e-6  # what HuggingFace adds to the squared length of queries and keys


class RecurrentInputs(NamedTuple):
    """What a recurrence takes of tokens, float32."""

    mixed: Array  # before the convolution, [..., C]
    decay: Array  # the logarithm of what the state is multiplied by before the token is written to it, [..., Hv]
    rate: Array  # how much of what the state says of a token's key is replaced by the token's value, [..., Hv]


class Convolution(nnx.Module):
    """A causal convolution of each channel with itself: [*stack, C, 1, inputs]."""

    def __init__(self, channels: int, inputs: int, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.weight = nnx.Param(normal(rngs, (*stack, channels, 1, inputs), dtype))

    def __call__(self, values: Array) -> Array:
        """Return [..., L, C] of L + inputs - 1 tokens, [..., L + inputs - 1, C], of which the first come before."""
        taps = self.weight[...][:, 0].astype(jnp.float32).T  # [inputs, C]
        length = values.shape[-2] - len(taps) + 1
        found = sum(values[..., first : first + length, :] * tap for first, tap in enumerate(taps))
        return jnp.asarray(found)


class GatedDeltaNet(nnx.Module):
    """The projections, the convolution and the gates of a recurrent layer."""

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        assert config.recurrence is not None
        sizes = self.sizes = config.recurrence
        self.in_proj_qkv = Linear(config.width, sizes.channels, stack, dtype, rngs)
        self.in_proj_z = Linear(config.width, sizes.output, stack, dtype, rngs)
        self.in_proj_b = Linear(config.width, sizes.value_heads, stack, dtype, rngs)
        self.in_proj_a = Linear(config.width, sizes.value_heads, stack, dtype, rngs)
        self.conv1d = Convolution(sizes.channels, sizes.inputs, stack, dtype, rngs)
        # In float32 whatever the others are: a rounding error of the decay would add up over all tokens.
        self.A_log = nnx.Param(jnp.zeros((*stack, sizes.value_heads), jnp.float32))
        self.dt_bias = nnx.Param(jnp.ones((*stack, sizes.value_heads), jnp.float32))
        self.norm = Norm(sizes.value_dim, stack, config, dtype, offset=0.0)
        self.out_proj = Linear(sizes.output, config.width, stack, dtype, rngs)

    def inputs(self, entering: Array) -> RecurrentInputs:
        """Return what the recurrence takes of what enters the layer, [..., width]."""
        slowness = jax.nn.softplus(self.in_proj_a(entering) + self.dt_bias[...])
        decay = -jnp.exp(self.A_log[...]) * slowness
        return RecurrentInputs(self.in_proj_qkv(entering), decay, jax.nn.sigmoid(self.in_proj_b(entering)))

    def heads(self, inputs: RecurrentInputs, before: Array) -> DeltaInputs:
        """Return queries, keys and values of sequences of L tokens, [..., L, C] before the convolution.

        before: what the convolution takes of the tokens before them, [..., inputs - 1, C]; zeros for the first.
        """
        sizes = self.sizes
        convolved = jax.nn.silu(self.conv1d(jnp.concatenate([before, inputs.mixed], axis=-2)))
        keys = sizes.key_heads * sizes.key_dim
        parts = jnp.split(convolved, [keys, 2 * keys], axis=-1)
        shape = convolved.shape[:-1]
        queries, keyed = (_unit(part.reshape(*shape, sizes.key_heads, sizes.key_dim)) for part in parts[:2])
        queries = queries * jnp.float32(sizes.key_dim**-0.5)
        shared = sizes.value_heads // sizes.key_heads
        if shared > 1:
            queries, keyed = (jnp.repeat(part, shared, axis=-2) for part in (queries, keyed))
        values = parts[2].reshape(*shape, sizes.value_heads, sizes.value_dim)
        return DeltaInputs(queries, keyed, values, inputs.decay, inputs.rate)

    def whole(self, inputs: RecurrentInputs) -> Array:
        """Return what is read at each token of whole sequences, [B, L, Hv, Dv] of inputs [B, L, ...]."""
        before = jnp.zeros((len(inputs.mixed), self.sizes.inputs - 1, self.sizes.channels), jnp.float32)
        length = inputs.mixed.shape[1]
        missing = -length % CHUNK
        padded = (jnp.pad(part, ((0, 0), (0, missing), *((0, 0),) * (part.ndim - 2))) for part in inputs)
        state = jnp.zeros((self.sizes.value_heads, self.sizes.key_dim, self.sizes.value_dim), jnp.float32)
        return delta_rule(self.heads(RecurrentInputs(*padded), before), state)[0][:, :length]

    def output(self, out: Array, entering: Array, total: Total = alone) -> Array:
        """Return what the layer adds, [..., width]; out: of the recurrence, [..., Hv, Dv], of what entered it."""
        gate = jax.nn.silu(self.in_proj_z(entering)).reshape(out.shape)
        return self.out_proj((self.norm(out) * gate).reshape(*out.shape[:-2], -1), total)


def _unit(vectors: Array) -> Array:
    """Return vectors of length one."""
    return vectors * jax.lax.rsqrt(jnp.sum(vectors * vectors, axis=-1, keepdims=True) + _UNIT)
