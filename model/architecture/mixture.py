"""A mixture of experts in the place of the MLP: a router chooses a few MLPs for each token, and adds what they give.

In Qwen3-Next and Qwen3.5, all tokens pass one MLP more, whose result is gated.

A token's bits must not depend on which experts other tokens have. So products have one number of rows, whatever is
routed where: the rows of all experts stand one behind another, and each expert takes its own in tiles of
:data:`TILE_ROWS`. A tile that is not full takes rows of the next expert as well; that one computes them again, and only
its result stays. What a token's experts give is added in the order of their numbers.

Shapes: T tokens, E experts, of which each token has k; F numbers within an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.typing import DTypeLike

from model.architecture.config import DecoderConfig
from model.architecture.experts import Mixture
from model.architecture.mlp import MLP
from model.architecture.projections import Linear, Norm, Total, normed
from model.layers.linear import ACTIVATIONS, alone, from_pool_dtype, project, sum_by_halves

TILE_ROWS = 32
"""Rows of every product of an expert. A CPU takes as long for 16 rows as for 32, since it waits for the weights."""


class Choice(NamedTuple):
    """The experts of each token, in the order of their numbers."""

    numbers: Array  # int32 [T, k]
    weights: Array  # float32 [T, k]

    def added(self, sums: Array, given: Callable[[int], Array]) -> Array:
        """Return sums [T, width] and what the experts of each token give, by their weights.

        given: returns this of the experts that stand at a rank, float32 [T, width].
        """
        for rank in range(self.weights.shape[1]):
            sums = sums + self.weights[:, rank, None] * given(rank)
        return sums


class Experts(nnx.Module):
    """The gated MLPs of a layer: the weights of each projection are [*stack, E, in, out].

    On a CPU, programs take those of bf16 as uint16, because the compiler takes an expert's part of bf16 by converting
    it to float32.
    """

    def __init__(
        self, config: DecoderConfig, mixture: Mixture, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        biased = mixture.biased
        self.gate_proj = Linear(config.width, config.mlp_width, stack, dtype, rngs, biased=biased)
        self.up_proj = Linear(config.width, config.mlp_width, stack, dtype, rngs, biased=biased)
        self.down_proj = Linear(config.mlp_width, config.width, stack, dtype, rngs, biased=biased)
        self.activation = config.traits.activation
        self.clamped = mixture.clamped

    def one(self, number: Array, rows: Array) -> Array:
        """Return what one expert gives for some rows without its last bias, float32 [rows, width]; number: int32 []."""

        def of_expert(weights: nnx.Param[Array]) -> Array:
            return from_pool_dtype(lax.dynamic_index_in_dim(weights[...], number, keepdims=False))

        def projected(linear: Linear) -> Array:
            out = project(rows, of_expert(linear.weight))
            return out if linear.bias is None else out + of_expert(linear.bias).astype(jnp.float32)

        return project(
            self._gated(projected(self.gate_proj), projected(self.up_proj)), of_expert(self.down_proj.weight)
        )

    def _gated(self, gate: Array, up: Array) -> Array:
        if self.clamped is None:
            return ACTIVATIONS[self.activation](gate) * up
        gain, limit = self.clamped
        gate = jnp.minimum(gate, limit)
        return gate * nnx.sigmoid(gain * gate) * (jnp.clip(up, -limit, limit) + 1)


class MixtureOfExperts(nnx.Module):
    """The router, and the experts. It can't be trained: the number of its tiles is known when it runs."""

    def __init__(
        self, config: DecoderConfig, mixture: Mixture, stack: tuple[int, ...], dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.mixture = mixture
        self.gate = Linear(config.width, mixture.experts, stack, dtype, rngs, biased=mixture.biased)
        self.experts = Experts(config, mixture, (*stack, mixture.experts), dtype, rngs)
        self.shared_expert = MLP(config, mixture.shared, stack, dtype, rngs) if mixture.shared else None
        """What all tokens pass, by a gate of one number."""
        self.shared_expert_gate = Linear(config.width, 1, stack, dtype, rngs) if mixture.shared else None

    def __call__(self, hidden: Array, norm: Norm | None = None, total: Total = alone) -> Array:
        """Return what it makes of hidden states, float32 [..., width], behind a norm."""
        values = normed(hidden, norm)
        rows = values.reshape(-1, values.shape[-1])
        choice = self.choice(rows)
        mixed = self._mixed(rows, choice)
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            mixed = mixed + nnx.sigmoid(self.shared_expert_gate(rows)) * self.shared_expert(rows)
        mixed = total(mixed)  # Each chip has all last biases, which are added once.
        if self.experts.down_proj.bias is not None:
            biases = from_pool_dtype(self.experts.down_proj.bias[...]).astype(jnp.float32)
            mixed = choice.added(mixed, lambda rank: biases[choice.numbers[:, rank]])
        return mixed.reshape(values.shape)

    def choice(self, rows: Array) -> Choice:
        """Return the experts of each token, float32 [T, width]. Of two that are as probable, the first comes first.

        The product is float32 for all weights: a rounding of what enters it would often choose others.
        """
        logits = project(rows, self.gate.weight[...].astype(jnp.float32))
        if self.gate.bias is not None:
            logits = logits + self.gate.bias[...].astype(jnp.float32)
        highest, numbers = lax.top_k(logits, self.mixture.chosen)
        peak = highest[:, :1]
        weights = jnp.exp(highest - peak)
        weights = weights / sum_by_halves(weights if self.mixture.normalised else jnp.exp(logits - peak))
        order = jnp.argsort(numbers, axis=-1)
        return Choice(*(jnp.take_along_axis(part, order, axis=-1) for part in (numbers, weights)))

    def _mixed(self, rows: Array, choice: Choice) -> Array:
        """Return the sum of what each token's experts give, by their weights: float32 [T, width]."""
        width, chosen = rows.shape[-1], self.mixture.chosen
        of_pairs = choice.numbers.reshape(-1)  # the expert of each pair of a token and one of its experts, [T * k]
        order = jnp.argsort(of_pairs, stable=True)
        counts = jnp.zeros(self.mixture.experts, jnp.int32).at[of_pairs].add(1)
        ends = jnp.cumsum(counts)
        tiles = -(-counts // TILE_ROWS)
        tile_ends = jnp.cumsum(tiles)
        beginnings, first_tiles = ends - counts, tile_ends - tiles
        entering = rows.astype(from_pool_dtype(self.experts.gate_proj.weight[...][:1]).dtype)[order // chosen]
        entering = jnp.pad(entering, ((0, TILE_ROWS), (0, 0)))  # for the last tile

        def of_tile(tile: Array, found: Array) -> Array:
            number = jnp.sum(tile_ends <= tile, dtype=jnp.int32)
            begin = beginnings[number] + (tile - first_tiles[number]) * TILE_ROWS
            out = self.experts.one(number, lax.dynamic_slice(entering, (begin, 0), (TILE_ROWS, width)))
            return lax.dynamic_update_slice(found, out, (begin, 0))

        nothing = jnp.zeros((len(order) + TILE_ROWS, width), jnp.float32)
        found = lax.fori_loop(0, tile_ends[-1], of_tile, nothing)
        places = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype)).reshape(-1, chosen)
        return choice.added(jnp.zeros_like(rows), lambda rank: found[places[:, rank]])
