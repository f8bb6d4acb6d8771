"""The modules that hold the weights of norms, projections and the embedding."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from model.architecture.config import DecoderConfig
from model.layers.linear import RMSNorm, alone, project, rms_norm, scaled

Total = Callable[[Array], Array]
"""Adds what several chips have computed of the same numbers (:func:`model.chips.mesh.total`), or is
:func:`model.layers.linear.alone`. Behind attention and behind the MLP, each chip has a part of every sum."""


class Norm(nnx.Module):
    """The weight of a root-mean-square norm: [*stack, size].

    scale: a factor of what comes out; offset: what is added to the weight, None for that of the family.
    """

    def __init__(
        self,
        size: int,
        stack: tuple[int, ...],
        config: DecoderConfig,
        dtype: DTypeLike,
        *,
        scale: float = 1.0,
        offset: float | None = None,
    ) -> None:
        self.weight = nnx.Param(jnp.ones((*stack, size), dtype))
        self.offset = config.traits.norm_offset if offset is None else offset
        self.epsilon = config.norm_epsilon
        self.scale = scale

    @property
    def factors(self) -> Array:
        """What normed values are multiplied by, without the scale."""
        weight = self.weight[...]
        return weight.astype(jnp.float32) + self.offset if self.offset else weight

    @property
    def unscaled(self) -> RMSNorm:
        """It without the scale."""
        return RMSNorm(self.factors, self.epsilon)

    def __call__(self, values: Array) -> Array:
        return scaled(rms_norm(values, *self.unscaled), self.scale)


def normed(values: Array, norm: Norm | None) -> Array:
    """Return values behind a norm, if there is one."""
    return values if norm is None else norm(values)


class LowRank(nnx.Module):
    """The two factors of what a LoRA adapter adds to a projection: [*stack, in, rank] and [*stack, rank, out].

    The second one has the scale of the adapter in it (arXiv:2106.09685).
    """

    def __init__(self, down: Array, up: Array) -> None:
        self.down = nnx.Param(down)
        self.up = nnx.Param(up)

    def __call__(self, values: Array) -> Array:
        return project(project(values, self.down[...]), self.up[...])


class Linear(nnx.Module):
    """A projection with weight [*stack, in, out] and optional bias [*stack, out]."""

    low_rank: LowRank | None = None
    """What an adapter adds, if it is not merged into the weight."""

    def __init__(
        self, size: int, out: int, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs, *, biased: bool = False
    ) -> None:
        self.weight = nnx.Param(normal(rngs, (*stack, size, out), dtype))
        self.bias = nnx.Param(jnp.zeros((*stack, out), dtype)) if biased else None

    @property
    def is_plain(self) -> bool:
        """Whether it is a product with the weight, and nothing is added."""
        return self.low_rank is None and self.bias is None

    def __call__(self, values: Array, total: Total = alone) -> Array:
        out = project(values, self.weight[...])
        out = total(out if self.low_rank is None else out + self.low_rank(values))
        return out if self.bias is None else out + self.bias[...].astype(jnp.float32)


class Embedding(nnx.Module):
    """A vector for each token id: ``as_rows`` [vocabulary, width], otherwise [width, vocabulary].

    A tied embedding is held in memory once. Stored in columns, it is a kernel for the head that is not transposed, and
    looking up columns takes a CPU under 1 ms for 256 tokens in a vocabulary of 150,000.
    """

    def __init__(self, config: DecoderConfig, dtype: DTypeLike, rngs: nnx.Rngs, *, tied_as_rows: bool) -> None:
        self.as_rows = tied_as_rows or not config.tied
        shape = (config.vocabulary, config.width) if self.as_rows else (config.width, config.vocabulary)
        self.weight = nnx.Param(normal(rngs, shape, dtype))
        self.scale = config.multipliers.embedding_multiplier

    def __call__(self, tokens: Array) -> Array:
        weight = self.weight[...]
        vectors = weight[tokens] if self.as_rows else jnp.moveaxis(jnp.take(weight, tokens, axis=1, mode="clip"), 0, -1)
        return scaled(vectors.astype(jnp.float32), self.scale)


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return random weights."""
    return 0.02 * jax.random.normal(rngs.params(), shape, dtype)
