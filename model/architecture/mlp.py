"""The gated MLP of a layer, or the one of a mixture of experts that all tokens pass."""

from __future__ import annotations

from flax import nnx
from jax import Array, lax
from jax.typing import DTypeLike

from model.architecture.config import DecoderConfig
from model.architecture.projections import Linear, Norm, Total, normed
from model.attention.contract import Gated
from model.layers.linear import ACTIVATIONS, alone


class MLP(nnx.Module):
    """A gated MLP, which all tokens pass."""

    def __init__(
        self, config: DecoderConfig, inner: int, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        """inner: how many numbers of a token it has between its projections."""
        biased = config.mlp_bias
        self.gate_proj = Linear(config.width, inner, stack, dtype, rngs, biased=biased)
        self.up_proj = Linear(config.width, inner, stack, dtype, rngs, biased=biased)
        self.down_proj = Linear(inner, config.width, stack, dtype, rngs, biased=biased)
        self.activation = config.traits.activation
        self.gated: Gated | None = None
        """Computes what enters the down projection by a kernel; None: by plain products."""

    def __call__(self, hidden: Array, norm: Norm | None = None, total: Total = alone) -> Array:
        """Return what it makes of hidden states, float32 [..., width], behind a norm."""
        if self.gated is not None and self.gate_proj.is_plain and self.up_proj.is_plain:
            weights = self.gate_proj.weight.get_value(), self.up_proj.weight.get_value()
            before = None if norm is None else norm.unscaled
            return self.down_proj(self.gated(hidden, before, *weights, self.activation), total)
        values = normed(hidden, norm)
        gated = ACTIVATIONS[self.activation](self.gate_proj(values)) * self.up_proj(values)
        # Without the barrier, the TPU compiler makes one slow loop of the products before and behind it.
        rounded = gated.astype(self.down_proj.weight.dtype)
        return self.down_proj(lax.optimization_barrier(rounded), total)  # type: ignore[no-untyped-call]
