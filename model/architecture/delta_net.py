"""The weights of a Gated DeltaNet (arXiv:2412.06464), as HuggingFace has it in Qwen3.5.

The recurrence between them is in :mod:`model.layers.delta_rule`. Everything is float32 but the operands of projections.

Shapes: Hk heads of queries and keys, Dk numbers each; Hv heads of values, Dv numbers each; C channels of the
convolution, which are queries, keys and values of all heads one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from model.architecture.config import DecoderConfig
from model.architecture.projections import Linear, Norm, Total, normal
from model.layers.delta_rule import DeltaInputs
from model.layers.linear import alone, sum_of_squares
from model.layers.rotation import split

_UNIT = 1e-6  # what HuggingFace adds to the squared length of queries and keys


class RecurrentInputs(NamedTuple):
    """What a recurrent layer takes of tokens, float32."""

    mixed: Array  # before the convolution, [..., C]
    decay: Array  # the logarithm of what the state is multiplied by before the token is written to it, [..., Hv]
    rate: Array  # how much of what the state says of a token's key is replaced by the token's value, [..., Hv]


class Convolution(nnx.Module):
    """A causal convolution of each channel with itself: [*stack, C, 1, inputs]."""

    def __init__(self, channels: int, inputs: int, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.weight = nnx.Param(normal(rngs, (*stack, channels, 1, inputs), dtype))

    def __call__(self, inputs: Sequence[Array]) -> Array:
        """Return [..., C]; inputs: of each token, [..., C] each, its own last, and those before it in order."""
        taps = self.weight[...][:, 0].astype(jnp.float32).T  # [inputs, C]
        return sum((one * tap for one, tap in zip(inputs[1:], taps[1:], strict=True)), inputs[0] * taps[0])


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

    def convolved(self, inputs: Sequence[Array]) -> Array:
        """Return queries, keys and values of all heads of tokens, [..., C]; inputs: see :class:`Convolution`."""
        return jax.nn.silu(self.conv1d(inputs))

    def heads(self, convolved: Array, decay: Array, rate: Array) -> DeltaInputs:
        """Return what the recurrence takes of tokens."""
        sizes = self.sizes
        # Of several chips, each has its share of the heads.
        keys = (convolved.shape[-1] - decay.shape[-1] * sizes.value_dim) // 2
        queries, keyed, values = jnp.split(convolved, [keys, 2 * keys], axis=-1)
        return DeltaInputs(
            _unit(split(queries, sizes.key_dim)) * jnp.float32(sizes.key_dim**-0.5),
            _unit(split(keyed, sizes.key_dim)),
            split(values, sizes.value_dim),
            decay,
            rate,
        )

    def output(self, out: Array, entering: Array, total: Total = alone) -> Array:
        """Return what the layer adds, [..., width]; out: of the recurrence, [..., Hv, Dv], of what entered it."""
        gate = jax.nn.silu(self.in_proj_z(entering)).reshape(out.shape)
        return self.out_proj((self.norm(out) * gate).reshape(*out.shape[:-2], -1), total)


def _unit(vectors: Array) -> Array:
    """Return vectors of length one."""
    return vectors * jax.lax.rsqrt(sum_of_squares(vectors) + _UNIT)
